"""What was made once is kept under the hash of all that it depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Recipe = dict[str, Any]  # plain values: everything that the outcome depends on
Arrays = dict[str, NDArray[Any]]


class Cache:
    """A folder of pictures and arrays; a run that was stopped finds there what it had."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, recipe: Recipe, suffix: str) -> bool:
        return self._path(recipe, suffix).exists()

    def image(self, recipe: Recipe) -> Image.Image:
        with Image.open(self._path(recipe, "png")) as image:
            return image.convert("RGB")

    def keep_image(self, recipe: Recipe, image: Image.Image) -> None:
        self._write(recipe, "png", lambda path: image.save(path, "PNG"))

    def arrays(self, recipe: Recipe) -> Arrays:
        with np.load(self._path(recipe, "npz"), allow_pickle=False) as file:
            return dict(file)

    def keep_arrays(self, recipe: Recipe, arrays: Arrays) -> None:
        def write(path: Path) -> None:
            with path.open("wb") as file:  # a name without .npz would get it added
                np.savez(file, **arrays)  # type: ignore[arg-type]

        self._write(recipe, "npz", write)

    def remember_image(self, recipe: Recipe, make: Callable[[], Image.Image]) -> Image.Image:
        """What `make` gives; made once for a recipe."""
        if not self.has(recipe, "png"):
            self.keep_image(recipe, make())
        return self.image(recipe)

    def remember(self, recipe: Recipe, make: Callable[[], Arrays]) -> Arrays:
        """What `make` gives; made once for a recipe."""
        if not self.has(recipe, "npz"):
            self.keep_arrays(recipe, make())
        return self.arrays(recipe)

    def _path(self, recipe: Recipe, suffix: str) -> Path:
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]
        return self.folder / digest[:2] / f"{digest}.{suffix}"

    def _write(self, recipe: Recipe, suffix: str, write: Callable[[Path], None]) -> None:
        path = self._path(recipe, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")  # complete before it has its name
        write(partial)
        os.replace(partial, path)


def picture_digest(image: Image.Image) -> str:
    """A hash of a picture's pixels, for recipes."""
    return hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).hexdigest()
