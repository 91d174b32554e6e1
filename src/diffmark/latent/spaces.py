"""Latent spaces: whose an autoencoder has, and how its raw latents become those that a denoiser works on.

Diffusion-scaled latents are (z - mean) / deviation. Mean and deviation are one number each (shift and scaling
factor: SD, SDXL, SD3, FLUX.1), one a channel (Qwen-Image, Wan, LTX, Playground), or one for each channel and place
of a 2 x 2 patch (FLUX.2, whose autoencoder ends in a batch norm of patchified latents).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffmark.latent.families import FAMILIES, Family


def vae_family(vae: Any) -> Family | None:
    """The family of an autoencoder's latents, if it is known.

    A scaling factor of 1 tells nothing: tiny autoencoders give scaled latents of any family.
    """
    config: Any = getattr(vae, "config", None)
    for family in FAMILIES.values():
        if type(vae).__name__ not in family.vae_classes:
            continue
        if family.channels not in (None, latent_channels(vae)):
            continue
        if family.scaling_factor is None:
            return family
        own_statistics = getattr(config, "latents_mean", None) is not None
        if abs(config.scaling_factor / family.scaling_factor - 1) < 1e-3 and not own_statistics:
            return family
    return None


def latent_channels(vae: Any) -> int:
    """Channels of its latents."""
    config = vae.config
    return getattr(config, "latent_channels", None) or config.z_dim


def pixels_per_latent(vae: Any) -> int:
    """Pixels a latent, each way."""
    config = vae.config
    known = vars(vae).get("spatial_compression_ratio") or getattr(config, "scale_factor_spatial", None)
    if known:
        return known
    blocks = getattr(config, "block_out_channels", None) or config.encoder_block_out_channels
    return 2 ** (len(blocks) - 1)  # every block but the last halves


def has_frames(vae: Any) -> bool:
    """Whether it works on (B, C, F, H, W), a picture being one frame."""
    names = ("temperal_downsample", "temporal_compression_ratio", "spatio_temporal_scaling")
    return any(getattr(vae.config, name, None) is not None for name in names)


def scaled(vae: Any, raw: Tensor) -> Tensor:
    """Raw latents (B, C, h, w) or (B, C, F, h, w) -> diffusion-scaled ones of that shape."""
    mean, deviation = _statistics(vae, raw)
    return (raw - mean) / deviation


def unscaled(vae: Any, latents: Tensor) -> Tensor:
    """The inverse of `scaled`: what `vae.decode` takes."""
    mean, deviation = _statistics(vae, latents)
    return latents * deviation + mean


def _statistics(vae: Any, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
    """Mean and deviation of raw latents, each a number or broadcastable over `like`."""
    config = vae.config
    if hasattr(vae, "bn"):  # FLUX.2: (4 C,) over channels of 2 x 2 patches
        deviation = (vae.bn.running_var + config.batch_norm_eps).sqrt()
        return _tiled(vae.bn.running_mean, like), _tiled(deviation, like)
    scaling = getattr(config, "scaling_factor", None) or 1.0
    mean, deviation = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
    if mean is None:  # LTX keeps them as buffers
        buffers = dict(vae.named_buffers(recurse=False))
        mean, deviation = buffers.get("latents_mean"), buffers.get("latents_std")
    if mean is None or deviation is None:
        return getattr(config, "shift_factor", None) or 0.0, 1.0 / scaling
    shape = (1, -1) + (1,) * (like.ndim - 2)
    mean, deviation = (torch.as_tensor(values).to(like).view(shape) for values in (mean, deviation))
    return mean, deviation / scaling


def _tiled(values: Tensor, like: Tensor) -> Tensor:
    """(4 C,) of patchified channels (c, dy, dx) -> (1, C, h, w)."""
    height, width = like.shape[-2:]
    if height % 2 or width % 2:
        raise ValueError(f"latents that are patchified 2 x 2 have even sides, got {height} x {width}")
    return values.to(like).view(1, -1, 2, 2).repeat(1, 1, height // 2, width // 2)
