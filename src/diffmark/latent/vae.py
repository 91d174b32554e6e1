"""The autoencoder between pixels and diffusion-scaled latents, whichever class of diffusers it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffmark.latent.codec import CodecConfig
from diffmark.latent.families import FAMILIES


class FamilyError(ValueError):
    """Codec and model do not share a latent space."""


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


@contextmanager
def upcast(vae: Any) -> Iterator[None]:
    """Inside, an autoencoder of half precision computes in float32.

    A mark is a small difference between two pictures, and SDXL's own pipelines do so too, where it would overflow.
    One whose weights are kept elsewhere (sequential offloading) stays as it is.
    """
    dtype = _dtype(vae)
    needed = dtype in (torch.float16, torch.bfloat16) and next(vae.parameters()).device.type != "meta"
    if needed:
        vae.to(torch.float32)
    try:
        yield
    finally:
        if needed:
            vae.to(dtype)


def check_family(codec: CodecConfig, vae: nn.Module) -> None:
    """Raise if the codec was not made for this autoencoder's latents; without a family only shapes are checked."""
    config: Any = vae.config
    if config.latent_channels != codec.channels:
        raise FamilyError(
            f"the codec is for latents of {codec.channels} channels, the vae has {config.latent_channels}"
        )
    factor = _downsampling(config)
    if factor != codec.pixels_per_latent:
        raise FamilyError(
            f"the codec is for {codec.pixels_per_latent} pixels a latent, the vae reduces {factor} times"
        )
    if codec.family is None:
        return
    if codec.family not in FAMILIES:
        raise FamilyError(
            f"unknown family {codec.family!r}: there are {', '.join(FAMILIES)}, or none for your own"
        )
    space = FAMILIES[codec.family]
    # A scaling factor of 1 tells nothing: tiny autoencoders give scaled latents of any family.
    known = space.scaling_factor
    if known and config.scaling_factor != 1 and abs(config.scaling_factor / known - 1) > 1e-3:
        raise FamilyError(
            f"the codec is for the family {codec.family!r} (scaling factor {known}), "
            f"the vae's scaling factor is {config.scaling_factor}"
        )
    if space.vae_class and type(vae).__name__ != space.vae_class:
        raise FamilyError(
            f"the codec is for the family {codec.family!r} and its {space.vae_class}, "
            f"the vae is a {type(vae).__name__}"
        )


def fits(codec: CodecConfig, vae: nn.Module) -> bool:
    """Whether `check_family` has nothing to say."""
    try:
        check_family(codec, vae)
    except FamilyError:
        return False
    return True


def _downsampling(config: Any) -> int:
    """Pixels a latent, each way: every block but the last halves."""
    blocks = getattr(config, "block_out_channels", None) or config.encoder_block_out_channels
    return 2 ** (len(blocks) - 1)


def load_vae(source: str | Path) -> nn.Module:
    """An autoencoder from its own folder, or from a pipeline's folder or hub id; safetensors only."""
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
        return _find_class(name).from_pretrained(folder, use_safetensors=True).eval()
    try:
        return diffusers.AutoModel.from_pretrained(str(source), subfolder="vae", use_safetensors=True).eval()
    except OSError as error:
        raise FileNotFoundError(
            f"{str(source)!r} is no folder, and the hub gave no pipeline with a vae of that id: {error}"
        ) from error


def _find_class(name: str) -> Any:
    import diffusers

    for family in FAMILIES.values():
        if family.vae_class == name:
            return family.models().autoencoder_class()
    if not hasattr(diffusers, name):
        raise FamilyError(f"diffusers {diffusers.__version__} has no autoencoder class {name!r}")
    return getattr(diffusers, name)


def _dtype(vae: nn.Module) -> torch.dtype:
    return next(vae.parameters()).dtype
