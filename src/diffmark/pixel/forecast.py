"""A fit without copies: the parameters of a mark are estimated from the picture alone, in a few milliseconds.

A mark m in a whitened picture is m / deviation, so a pattern behind a mask arrives with mean(mask / deviation) of
its amplitude; the picture itself says something of each bit, and has some power around each tone. What only copies
could say (which bands a JPEG leaves, how strong the mark must be) is taken from the means of fits to copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.layout import Layout
from diffmark.pixel.spectrum import CLIP, NOISE_FLOOR, WINDOW, Plane, box, scaled

# At these sides in pixels: amplitudes of luma bands of so many cycles, of chroma, and the quality to aim at.
SIDES = (256, 512)
CYCLES = (36.0, 54.0, 76.0, 100.0, 124.0)
LUMA = ((0.3, 2.0, 0.5, 0.2, 0.4), (0.47, 0.47, 0.62, 0.48, 1.13))
CHROMA = (0.7, 1.8)
QUALITIES = (80.0, 84.0)
AGAINST = 0.2  # of its amplitude that a bit gets for each deviation that the luma bands say against it
AGAINST_CHROMA = 0.3
FACTORS = (0.2, 3.0)  # least and largest, of a bit
TONE_SCORE = 3.8  # of all tones, in root mean powers of what lies around them
TONES = (0.2, 1.0)  # least and largest amplitude


@dataclass(frozen=True, eq=False)
class Forecast:
    """Amplitudes of bits (K, L) and of tones, and the quality that they are scaled to."""

    amplitudes: NDArray[np.float64]
    tone: float
    quality: float


def forecast(
    picture: NDArray[np.float32], mask: Plane, layout: Layout, signs: NDArray[np.float64]
) -> Forecast:
    """For planes (3, h, w) of a picture, the mask of its mark and the signs of its bits (L,)."""
    window, side = scaled(WINDOW, mask.shape), min(mask.shape)
    detail = picture[0] - box(picture[0], window)
    steepness = 1 / np.sqrt(np.maximum(box(detail * detail, window), 0) + NOISE_FLOOR**2)
    white = np.clip(detail * steepness, -CLIP, CLIP)
    slope = float(np.mean(mask * steepness)) * white.size / 2
    tone = TONE_SCORE * float(np.mean(layout.tones.level(white))) / slope
    says = layout.frame_scores(white, picture[1:]) * signs
    luma = np.array([band.plane == 0 for band in layout.bands])
    against = np.where(luma[:, None], AGAINST * says[luma].sum(axis=0), AGAINST_CHROMA * says)
    shares = np.where(luma, _luma_shares(layout, side), np.interp(side, SIDES, CHROMA))
    amplitudes = shares[:, None] * np.clip(1 - against, *FACTORS)
    return Forecast(amplitudes, float(np.clip(tone, *TONES)), float(np.interp(side, SIDES, QUALITIES)))


def _luma_shares(layout: Layout, side: int) -> NDArray[np.float64]:
    """Amplitude of each band, were it one of luma, in a picture of this side."""
    cycles = [(band.low + band.high) / 2 for band in layout.bands]
    small, large = (np.interp(cycles, CYCLES, row) for row in LUMA)
    weight = float(np.interp(side, SIDES, (0.0, 1.0)))
    return np.asarray((1 - weight) * small + weight * large)
