"""An evidence map: where in a picture the mark is, in standard deviations above chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from diffmark.images import ImageLike, read_image

Way = Literal["matched", "occlusion", "pixel"]
FAINT, STRONG = 1.0, 5.0  # scores that are drawn first and fullest
TELLING, ABSENT = 4.0, 1.0  # expected scores that tell something, and scores at which the mark is not there
COLOUR = (214, 40, 96)


@dataclass(frozen=True, eq=False)
class EvidenceMap:
    """Scores over the picture, (rows, columns), and the secret they speak for."""

    scores: np.ndarray
    secret: str
    way: Way
    expected: np.ndarray | None = (
        None  # scores of an untouched picture that carries the mark, where that is known
    )

    @property
    def missing(self) -> float | None:
        """Share of the places that should show the mark and do not; None where that is not known."""
        if self.expected is None:
            return None
        telling = self.expected >= TELLING
        return float(np.mean(self.scores[telling] < ABSENT)) if telling.any() else 0.0

    def overlay(self, image: ImageLike) -> Image.Image:
        """The picture in grey, coloured where the evidence is."""
        picture = read_image(image).image
        opacity = np.clip((self.scores - FAINT) / (STRONG - FAINT), 0, 1) * 0.6
        mask = Image.fromarray(np.rint(opacity * 255).astype(np.uint8))
        mask = mask.resize(picture.size, Image.Resampling.BICUBIC)
        return Image.composite(
            Image.new("RGB", picture.size, COLOUR), picture.convert("L").convert("RGB"), mask
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; scores rounded to hundredths."""
        return {
            "secret": self.secret,
            "way": self.way,
            "scores": np.round(self.scores, 2).tolist(),
            "missing": self.missing,
        }
