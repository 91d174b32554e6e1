"""What an experiment works with: a studio, methods, and how many images of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.attacks import ATTACKS, Attack
from diffmark.evaluation.studio import Studio, batches, painted_scenes, photograph_crops, unseen_orders
from diffmark.generation import Order
from diffmark.methods.base import Method

Row = dict[str, Any]
Experiment = Callable[["Lab"], Iterator[Row]]


@dataclass(frozen=True)
class Extent:
    """How many images; `quick` takes minutes, the full one a few hours on two cores."""

    marked: int = 500  # marked images for clean figures
    plain: int = 500  # unmarked images of the model
    scenes: int = 5500  # pictures of the painter
    photographs: int = 4000  # crops, if a folder is given
    attacked: int = 100  # marked images an attack and strength
    adversarial: int = 30  # the same for attacks that take seconds an image
    strengths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    timed: int = 50

    @classmethod
    def quick(cls) -> Extent:
        return cls(
            marked=16,
            plain=16,
            scenes=200,
            photographs=200,
            attacked=8,
            adversarial=2,
            strengths=(0.5, 1.0),
            timed=8,
        )


@dataclass
class Lab:
    """Passed to every experiment."""

    studio: Studio
    methods: list[Method]
    extent: Extent = field(default_factory=Extent)
    photographs: Path | None = None
    attacks: dict[str, Attack] = field(default_factory=lambda: dict(ATTACKS))

    @cached_property
    def orders(self) -> list[Order]:
        return unseen_orders(max(self.extent.marked, self.extent.attacked))

    def marked(self, method: Method, count: int) -> list[Image.Image]:
        return [self.studio.marked(method, order) for order in self.orders[:count]]

    def plain(self, count: int) -> list[Image.Image]:
        return [self.studio.plain(order) for order in self.orders[:count]]

    def secrets(self, method: Method, count: int) -> NDArray[np.uint8]:
        """The bits that each marked image carries, (count, bits)."""
        return np.stack([order.secret[: method.bits] for order in self.orders[:count]])

    def negatives(self) -> Iterator[Image.Image]:
        """Unmarked images: of the model, of the painter, photographs."""
        model = (self.studio.plain(order) for order in unseen_orders(self.extent.plain, first=100_000))
        crops: Iterator[Image.Image] = iter(())
        if self.photographs is not None:
            crops = photograph_crops(self.photographs, self.extent.photographs)
        return chain(model, painted_scenes(self.extent.scenes), crops)

    def negative_scores(self, method: Method) -> NDArray[np.float64]:
        """Each unmarked image scored against a random secret of its own."""
        rng, scores = np.random.default_rng(12345), []
        for batch in batches(self.negatives()):
            secrets = rng.integers(0, 2, (len(batch), max(method.bits, 1))).astype(np.uint8)
            scores.append(method.score(batch, secrets))
        return np.concatenate(scores)
