"""The autoencoder between pixels and diffusion-scaled latents, whichever class of diffusers it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffmark.latent.config import LatentConfig
from diffmark.latent.families import FAMILIES
from diffmark.latent.files import bundled_codecs, fetch
from diffmark.latent.spaces import (
    has_frames,
    latent_channels,
    pixels_per_latent,
    scaled,
    unscaled,
    vae_family,
)


class FamilyError(ValueError):
    """Codec and model do not share a latent space."""


def encode(vae: Any, pixels: Tensor) -> Tensor:
    """Pixels in [-1, 1], (B, 3, H, W) -> diffusion-scaled latents (B, C, h, w); the mode, never a sample."""
    pixels = pixels.to(_dtype(vae))
    output = vae.encode(pixels[:, :, None] if has_frames(vae) else pixels)
    if hasattr(output, "latent_dist"):
        latents = output.latent_dist.mode()
    else:
        latents = output.latent if hasattr(output, "latent") else output.latents
    return scaled(vae, latents[:, :, 0] if latents.ndim == 5 else latents)


def decode(vae: Any, latents: Tensor) -> Tensor:
    """Diffusion-scaled latents (B, C, h, w) -> pixels (B, 3, H, W), nominally in [-1, 1], not clamped."""
    raw = unscaled(vae, latents.to(_dtype(vae)))
    pixels = vae.decode(raw[:, :, None] if has_frames(vae) else raw).sample
    return pixels[:, :, 0] if pixels.ndim == 5 else pixels


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


def check_family(codec: LatentConfig, vae: nn.Module) -> None:
    """Raise if the codec was not made for this autoencoder's latents; without a family only shapes are checked."""
    channels, factor = latent_channels(vae), pixels_per_latent(vae)
    if channels != codec.channels:
        raise FamilyError(
            f"the codec is for latents of {codec.channels} channels, the vae has {channels}{_right(vae)}"
        )
    if factor != codec.pixels_per_latent:
        raise FamilyError(
            f"the codec is for {codec.pixels_per_latent} pixels a latent, the vae reduces {factor} times"
            f"{_right(vae)}"
        )
    if codec.family is None:
        return
    if codec.family not in FAMILIES:
        raise FamilyError(
            f"unknown family {codec.family!r}: there are {', '.join(FAMILIES)}, or none for your own"
        )
    own, wanted = vae_family(vae), FAMILIES[codec.family]
    if own is not None and own.name != codec.family:
        raise FamilyError(
            f"the codec is for the family {codec.family!r}, the vae is of {own.name!r}{_right(vae)}"
        )
    scaling = getattr(vae.config, "scaling_factor", 1) or 1
    if own is None and (wanted.scaling_factor is None or scaling != 1):
        classes = " or ".join(wanted.vae_classes)
        known = f" and scaling factor {wanted.scaling_factor}" if wanted.scaling_factor else ""
        raise FamilyError(
            f"the codec is for the family {codec.family!r} and its {classes}{known}, the vae is a "
            f"{type(vae).__name__} with scaling factor {scaling}{_right(vae)}"
        )


def codec_for(vae: Any) -> str | None:
    """The bundled codec for an autoencoder's latent space; None if none comes with the package."""
    family = vae_family(vae)
    return family.name if family and family.name in bundled_codecs() else None


def _right(vae: Any) -> str:
    """What would be right, as the end of a sentence."""
    family, codec = vae_family(vae), codec_for(vae)
    if codec:
        return f"; the codec for it is {codec!r}"
    return f"; no codec ships for {family.name!r}, the pixel layer marks it" if family else ""


def fits(codec: LatentConfig, vae: nn.Module) -> bool:
    """Whether `check_family` has nothing to say."""
    try:
        check_family(codec, vae)
    except FamilyError:
        return False
    return True


def load_vae(source: str | Path) -> nn.Module:
    """An autoencoder from its own folder, or from a pipeline's folder or hub id; safetensors only."""
    folder = Path(source)
    if not folder.is_dir():
        files = ("config.json", "diffusion_pytorch_model*.safetensors", "*.safetensors.index.json")
        wanted = [*files, *(f"vae/{name}" for name in files)]
        try:
            folder = fetch(str(source), wanted)
        except OSError as error:
            raise FileNotFoundError(
                f"{str(source)!r} is no folder, and the hub gave no pipeline with a vae of that id: {error}"
            ) from error
    if not (folder / "config.json").is_file() and (folder / "vae" / "config.json").is_file():
        folder = folder / "vae"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{source} is neither a vae's folder nor a pipeline's: no config.json, no vae/"
        )
    name = json.loads((folder / "config.json").read_text()).get("_class_name", "AutoencoderKL")
    return _find_class(name).from_pretrained(folder, use_safetensors=True).eval()


def _find_class(name: str) -> Any:
    import diffusers

    for family in FAMILIES.values():
        if family.package and name in family.vae_classes:
            return family.models().autoencoder_class()
    if not hasattr(diffusers, name):
        raise FamilyError(f"diffusers {diffusers.__version__} has no autoencoder class {name!r}")
    return getattr(diffusers, name)


def _dtype(vae: nn.Module) -> torch.dtype:
    return next(vae.parameters()).dtype
