"""What an attack is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

Distort = Callable[[Image.Image, float, np.random.Generator], Image.Image]


@dataclass(frozen=True)
class Attack:
    """A distortion and the range of its parameter."""

    name: str
    kind: str  # distortion, everyday, regeneration, adversarial
    low: float  # parameter at strength 0
    high: float  # parameter at strength 1
    unit: str  # what the parameter is
    distort: Distort

    def value(self, strength: float) -> float:
        """The parameter at a strength in [0, 1]."""
        if not 0 <= strength <= 1:
            raise ValueError(f"strength lies between 0 and 1, got {strength}")
        return self.low + strength * (self.high - self.low)

    def __call__(self, image: Image.Image, strength: float, seed: int = 0) -> Image.Image:
        """The distorted image, RGB, of the same size unless the attack is about size; a seed gives one outcome."""
        return self.distort(image.convert("RGB"), self.value(strength), np.random.default_rng(seed))

    def on_all(self, images: Sequence[Image.Image], strength: float, base_seed: int = 0) -> list[Image.Image]:
        """The attack on a batch; image i gets the seed base_seed + i."""
        return [self(image, strength, base_seed + index) for index, image in enumerate(images)]
