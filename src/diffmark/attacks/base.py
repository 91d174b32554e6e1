"""What an attack is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

Rng = np.random.Generator
Distort = Callable[[Image.Image, float, Rng], Image.Image]

BATCH = 8  # images that a model works on at a time


class ModelDistort(ABC):
    """A distortion by a neural network, on several images of one size at a time."""

    by: str  # the network, as people know it
    weights: str  # digest of its weights

    @abstractmethod
    def batch(self, images: list[Image.Image], value: float, rngs: list[Rng]) -> list[Image.Image]:
        """All images distorted, each with its own random numbers."""

    def __call__(self, image: Image.Image, value: float, rng: Rng) -> Image.Image:
        return self.batch([image], value, [rng])[0]


@dataclass(frozen=True)
class Attack:
    """A distortion and the range of its parameter."""

    name: str
    kind: str  # distortion, combined, everyday, regeneration, adversarial
    low: float  # parameter at strength 0
    high: float  # parameter at strength 1
    unit: str  # what the parameter is
    distort: Distort
    against: str | None = None  # the only method that it is an attack on

    @property
    def by(self) -> str | None:
        """The model that it uses, if any."""
        return self.distort.by if isinstance(self.distort, ModelDistort) else None

    def value(self, strength: float) -> float:
        """The parameter at a strength in [0, 1]."""
        if not 0 <= strength <= 1:
            raise ValueError(f"strength lies between 0 and 1, got {strength}")
        return self.low + strength * (self.high - self.low)

    def __call__(self, image: Image.Image, strength: float, seed: int = 0) -> Image.Image:
        """The distorted image, RGB, of the same size unless the attack is about size; a seed gives one outcome."""
        return self.distort(image.convert("RGB"), self.value(strength), np.random.default_rng(seed))

    def on_all(self, images: Sequence[Image.Image], strength: float, base_seed: int = 0) -> list[Image.Image]:
        """The attack on many, in batches where a model makes it; image i gets the seed base_seed + i."""
        if not isinstance(self.distort, ModelDistort) or len({image.size for image in images}) > 1:
            return [self(image, strength, base_seed + index) for index, image in enumerate(images)]
        attacked: list[Image.Image] = []
        for start in range(0, len(images), BATCH):
            batch = [image.convert("RGB") for image in images[start : start + BATCH]]
            rngs = [np.random.default_rng(base_seed + start + index) for index in range(len(batch))]
            attacked += self.distort.batch(batch, self.value(strength), rngs)
        return attacked
