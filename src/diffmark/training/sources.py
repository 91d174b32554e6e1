"""Where training latents come from: pictures, encoded once by the vae and kept.

Late injection starts at noised latents and final injection at latents themselves, so both train on pictures: a
folder of images, or scenes that the embedded family's painter makes. The last pictures (the painter's held-out
seeds) are never trained on.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from diffmark.images import read_image
from diffmark.latent.vae import encode

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Pictures:
    """Pictures by index, as float32 (3, H, W) in [-1, 1], all of one size."""

    name: str  # tells one set from another, for the cache
    count: int
    pixels: Callable[[int], np.ndarray]
    caption: Callable[[int], str] | None = None


@dataclass(frozen=True)
class Split:
    """Pictures to train on, and pictures to measure on."""

    train: Pictures
    held_out: Pictures


def open_pictures(
    source: str, size: tuple[int, int], count: int, held_out: int, cache: Path | None = None
) -> Split:
    """`vista`, or a folder of images, at (height, width) `size`; at most `count` of them are trained on."""
    if source == "vista" and not Path(source).is_dir():
        return _vista(size, count, held_out, cache)
    return _folder(Path(source), size, count, held_out)


def _folder(folder: Path, size: tuple[int, int], count: int, held_out: int) -> Split:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; pictures are a folder of images, or `vista`")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if len(paths) < held_out + 2:
        raise FileNotFoundError(
            f"{folder} has {len(paths)} images ({', '.join(SUFFIXES)}); training needs two besides the "
            f"{held_out} that are held out for measuring"
        )

    def part(chosen: list[Path]) -> Pictures:
        listed = "\n".join(str(path.relative_to(folder)) for path in chosen)
        name = f"{folder.resolve()} {size} {hashlib.sha256(listed.encode()).hexdigest()}"
        return Pictures(name, len(chosen), lambda i: read_image(chosen[i]).resized(size).pixels())

    # From the end: whoever holds out more, holds out the same ones first.
    return Split(part(paths[: len(paths) - held_out][:count]), part(paths[::-1][:held_out]))


def _vista(size: tuple[int, int], count: int, held_out: int, cache: Path | None) -> Split:
    from diffmark.vista.paint import PAINTER
    from diffmark.vista.scenes import HELD_OUT, caption, random_scene
    from diffmark.vista.training.data import painted

    if size[0] != size[1]:
        raise ValueError(f"painted scenes are square, the codec's images are {size[0]}x{size[1]}")

    def part(first: int, number: int) -> Pictures:
        @functools.cache
        def pictures() -> np.ndarray:  # painted when the first one is asked for
            return painted(cache or Path("runs/cache"), number, size[0], first)

        return Pictures(
            f"vista {first} {number} {size[0]} {PAINTER}",
            number,
            lambda i: pictures()[i].transpose(2, 0, 1).astype(np.float32) / 127.5 - 1,
            lambda i: caption(random_scene(first + i)),
        )

    return Split(part(0, count), part(HELD_OUT, held_out))


@torch.no_grad()
def latents_of(vae: Any, pictures: Pictures, cache: Path | None = None, batch: int = 16) -> Tensor:
    """Diffusion-scaled latents of all pictures, (N, C, h, w) float16 on the CPU; kept in `cache` if given."""
    file = cache / f"latents-{_key(vae, pictures)}.npy" if cache else None
    if file and file.is_file():
        return torch.from_numpy(np.load(file))
    device = next(vae.parameters()).device
    parts = []
    for start in tqdm(range(0, pictures.count, batch), desc="encoding pictures", disable=None):
        indices = range(start, min(start + batch, pictures.count))
        pixels = torch.from_numpy(np.stack([pictures.pixels(i) for i in indices]))
        parts.append(encode(vae, pixels.to(device)).half().cpu())
    latents = torch.cat(parts)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial.npy")
        np.save(partial, latents.numpy())
        partial.replace(file)
    return latents


def _key(vae: nn.Module, pictures: Pictures) -> str:
    config: Any = vae.config
    scale = (config.scaling_factor, getattr(config, "shift_factor", None))
    digest = hashlib.sha256(f"{pictures.name} {scale}".encode())
    for name, value in sorted(vae.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()[:16]
