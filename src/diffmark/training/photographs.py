"""Pictures on disk for training and measuring on real latent spaces, split by a rule that needs no list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from diffmark.images import read_image
from diffmark.training.sources import SUFFIXES


@dataclass(frozen=True)
class PhotoSplit:
    """Files to train on, and files that no training ever opens."""

    train: tuple[Path, ...]
    held_out: tuple[Path, ...]


def split_photographs(folder: str | Path, every: int) -> PhotoSplit:
    """Of each folder under `folder`, sorted by name, the `every`-th image is held out: every 5 keeps 20% apart."""
    if every < 2:
        raise ValueError(f"every must be at least 2, got {every}")
    groups: dict[Path, list[Path]] = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix.lower() in SUFFIXES:
            groups.setdefault(path.parent, []).append(path)
    held_out = [path for group in groups.values() for path in group[every - 1 :: every]]
    apart = set(held_out)
    train = [path for group in groups.values() for path in group if path not in apart]
    if not train or not held_out:
        raise FileNotFoundError(
            f"{folder} has too few images ({', '.join(SUFFIXES)}) to keep one of {every} apart"
        )
    return PhotoSplit(tuple(train), tuple(held_out))


def centre_square(path: Path, size: int) -> np.ndarray:
    """The largest square in the middle, (size, size, 3) uint8."""
    image = read_image(path).image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((size, size), Image.Resampling.LANCZOS) if side != size else square)


def unseen_photographs(folder: str | Path, count: int, seed: int, size: int = 512) -> list[Image.Image]:
    """Squares of up to `count` photographs that no training of a family opened, in an order that the seed tells."""
    held_out = split_photographs(folder, 5).held_out
    order = np.random.default_rng(seed).permutation(len(held_out))[:count]
    return [Image.fromarray(centre_square(held_out[i], size)) for i in order]
