"""Pictures that nothing has marked: of the painter, and crops of photographs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from diffmark.evaluation.cache import Cache
from diffmark.vista.paint import PAINTER, painted_scenes

PHOTOGRAPHS = (".jpg", ".jpeg", ".png", ".webp")
DEBIAN = ("/usr/share/backgrounds", "/usr/share/wallpapers", "/usr/share/plasma/wallpapers")
MIN_SIDE = 400  # pixels of a picture's shorter side; smaller ones are icons and thumbnails


def find_photographs(folder: Path | None) -> list[Path]:
    """The photographs of a folder; without one those of Debian's wallpapers and of scikit-image, if installed."""
    if folder is not None:
        found = _pictures(folder)
        if not found:
            raise ValueError(f"{folder} holds no photographs ({', '.join(PHOTOGRAPHS)})")
        return found
    return [
        path for place in (*map(Path, DEBIAN), *_scikit_image()) for path in _pictures(place) if _large(path)
    ]


def crop(paths: Sequence[Path], index: int, side: int = 256) -> Image.Image:
    """The index-th random square crop, resized to `side`; photographs take turns."""
    with Image.open(paths[index % len(paths)]) as opened:
        image = opened.convert("RGB")
    rng = np.random.default_rng([index, 31])
    size = int(min(image.size) * rng.uniform(0.5, 1.0))
    x, y = (int(rng.integers(extent - size + 1)) for extent in image.size)
    return image.crop((x, y, x + size, y + size)).resize((side, side), Image.Resampling.LANCZOS)


def scene(cache: Cache, index: int) -> Image.Image:
    """The index-th unseen picture of the painter, painted once."""
    return cache.remember_image({"scene": index, "painter": PAINTER}, lambda: next(painted_scenes(1, index)))


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PHOTOGRAPHS)


def _large(path: Path) -> bool:
    with Image.open(path) as image:
        return min(image.size) >= MIN_SIDE


def _scikit_image() -> list[Path]:
    try:
        import skimage
    except ImportError:
        return []
    return [Path(skimage.__file__).parent / "data"]
