"""DiffMark itself, in any injection mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.detection import Detector
from diffmark.generation import Order, Sampling, generate
from diffmark.injection import Injection
from diffmark.methods.base import Method


class DiffMark(Method):
    """A codec on a pipeline; the name tells the injection mode where it is not the codec's own."""

    def __init__(
        self,
        pipe: Any,
        detector: Detector,
        sampling: Sampling | None = None,
        injection: Injection | None = None,
    ) -> None:
        self.pipe, self.detector = pipe, detector
        self.codec = detector.codec
        self.injection = injection or self.codec.config.injection
        self.sampling = replace(sampling or Sampling(), injection=self.injection)
        self.bits = self.codec.config.length
        self.name = "diffmark" if injection is None else f"diffmark-{injection.mode}"

    def on(self, pipe: Any) -> DiffMark:
        """The same codec and sampling on another model of the family."""
        return DiffMark(pipe, self.detector, self.sampling, self.injection)

    def generate(self, order: Order) -> Image.Image:
        return generate(self.pipe, self.codec, order, self.sampling)

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        return np.stack([found.margins for found in self.detector.detect_many(images)]).astype(np.float64)

    def fingerprint(self) -> dict[str, Any]:
        weights = self.codec.encoder.basis.detach().double().sum().item()
        return {"method": "diffmark", "sampling": asdict(self.sampling), "codec": weights}
