"""The autoencoder between pixels and diffusion-scaled latents, whichever class of diffusers it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffmark.codec import CodecConfig


class FamilyError(ValueError):
    """Codec and model do not share a latent space."""


@dataclass(frozen=True)
class LatentSpace:
    """What identifies a family's full autoencoder: its channels and its scaling factor."""

    channels: int
    scaling_factor: float


FAMILIES = {
    "sd": LatentSpace(4, 0.18215),
    "sdxl": LatentSpace(4, 0.13025),
    "sd3": LatentSpace(16, 1.5305),
    "flux": LatentSpace(16, 0.3611),
}


def encode(vae: Any, pixels: Tensor) -> Tensor:
    """Pixels in [-1, 1], (B, 3, H, W) -> diffusion-scaled latents (B, C, h, w); the mode, never a sample."""
    config = vae.config
    output = vae.encode(pixels.to(_dtype(vae)))
    latents = output.latent_dist.mode() if hasattr(output, "latent_dist") else output.latents
    return (latents - (getattr(config, "shift_factor", None) or 0.0)) * config.scaling_factor


def decode(vae: Any, latents: Tensor) -> Tensor:
    """Diffusion-scaled latents (B, C, h, w) -> pixels (B, 3, H, W), nominally in [-1, 1], not clamped."""
    config = vae.config
    latents = latents.to(_dtype(vae)) / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
    return vae.decode(latents).sample


def check_family(codec: CodecConfig, vae: nn.Module) -> None:
    """Raise if the codec was not made for this autoencoder's latents."""
    config: Any = vae.config
    if config.latent_channels != codec.channels:
        raise FamilyError(
            f"the codec is for latents of {codec.channels} channels, the vae has {config.latent_channels}"
        )
    space = FAMILIES.get(codec.family or "")
    # A scaling factor of 1 tells nothing: tiny autoencoders give scaled latents of any family.
    if space and config.scaling_factor != 1 and abs(config.scaling_factor / space.scaling_factor - 1) > 1e-3:
        raise FamilyError(
            f"the codec is for the family {codec.family!r} (scaling factor {space.scaling_factor}), "
            f"the vae's scaling factor is {config.scaling_factor}"
        )


def load_vae(source: str | Path) -> nn.Module:
    """An autoencoder from its own folder, from a pipeline's folder, or from a hub id."""
    import diffusers

    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file() and (folder / "vae" / "config.json").is_file():
            folder = folder / "vae"
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(
                f"{source} is neither a vae's folder nor a pipeline's: no config.json, no vae/"
            )
        name = json.loads((folder / "config.json").read_text()).get("_class_name", "AutoencoderKL")
        vae_class = _find_class(name)
        return vae_class.from_pretrained(folder).eval()
    return diffusers.AutoModel.from_pretrained(str(source), subfolder="vae").eval()


def _find_class(name: str) -> Any:
    import diffusers

    if name == "PatchAutoencoder":
        from diffmark.vista.autoencoder import PatchAutoencoder

        return PatchAutoencoder
    if not hasattr(diffusers, name):
        raise FamilyError(f"diffusers {diffusers.__version__} has no autoencoder class {name!r}")
    return getattr(diffusers, name)


def _dtype(vae: nn.Module) -> torch.dtype:
    return next(vae.parameters()).dtype
