"""Bands and tones of one key, and how their scores become margins and evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.keys import OperatorKey
from diffmark.pixel.spectrum import FRAME, Band, Plane, forward, lowest, resample, whiten
from diffmark.pixel.tones import Tones

MAX_LENGTH = 128  # bits
LAYOUTS = 16  # that are kept, each about 2 MB: as many as a ring has keys
MIN_GAIN = 0.05  # of a band in which nothing stands out, so that bits are read all the same


@dataclass(frozen=True)
class BandConfig:
    """One band: its plane (0 luma, 1 blue, 2 red chroma) and its radii in cycles a frame."""

    name: str
    plane: int
    low: float
    high: float


BANDS = (
    BandConfig("luma-1", 0, 28, 44),
    BandConfig("luma-2", 0, 44, 64),
    BandConfig("luma-3", 0, 64, 88),
    BandConfig("luma-4", 0, 88, 112),
    BandConfig("luma-5", 0, 112, 136),
    BandConfig("blue-1", 1, 20, 32),
    BandConfig("red-1", 2, 20, 32),
)


@dataclass(frozen=True)
class PixelConfig:
    """What writer and reader must agree on besides the key."""

    length: int = 64
    bands: tuple[BandConfig, ...] = BANDS

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_LENGTH:
            raise ValueError(f"a secret has 1 to {MAX_LENGTH} bits, got {self.length}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Layout:
    """Bands and tones of a config under a key: pure functions of planes."""

    def __init__(self, config: PixelConfig, key: OperatorKey) -> None:
        self.config, self.key = config, key
        self.tones = Tones(key)

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        return tuple(
            Band(band.name, band.plane, band.low, band.high, self.config.length, self.key)
            for band in self.config.bands
        )

    def reach(self, luma: bool) -> int:
        """Lowest coefficients along an axis that hold the bands of luma, or those of chroma."""
        return max((band.reach for band in self.bands if luma == (band.plane == 0)), default=0)

    def scores(
        self, frame: NDArray[np.float32], present: Plane | None = None, white: Plane | None = None
    ) -> NDArray[np.float64]:
        """Scores of every band and bit of a frame (3, 512, 512), (K, L); `white` is its whitened luma, if known."""
        white = whiten(frame[0], present) if white is None else white
        return self.frame_scores(white, centred(frame[1:], present))

    def frame_scores(self, white: Plane, chroma: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores of every band and bit of whitened luma and of chroma (2, H, W), at most of the frame's size."""
        return np.concatenate([self.white_scores(white), self.chroma_scores(chroma)])

    def chroma_scores(self, chroma: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores of the chroma bands of centred planes (2, H, W), of the frame's size or less."""
        reach = self.reach(luma=False)
        if not reach:
            return np.zeros((0, self.config.length))
        transforms = [lowest(plane, reach) for plane in chroma]
        return np.stack([band.scores(transforms[band.plane - 1]) for band in self.bands if band.plane])

    def luma_scores(self, luma: Plane, present: Plane | None = None) -> NDArray[np.float64]:
        """Scores of the luma bands alone."""
        return self.white_scores(whiten(luma, present))

    def white_scores(self, white: Plane) -> NDArray[np.float64]:
        """Scores of the luma bands of a whitened picture, of the frame's size or less."""
        transform = forward(white, self.reach(luma=True))
        return np.stack([band.scores(transform) for band in self.bands if not band.plane])


@lru_cache(maxsize=LAYOUTS)
def layout_of(config: PixelConfig, key: OperatorKey) -> Layout:
    """The layout of a config under a key: its patterns are derived once in a process, not once a codec."""
    return Layout(config, key)


def centred(planes: NDArray[np.float32], present: Plane | None = None) -> NDArray[np.float32]:
    """Planes (C, H, W) of mean 0 where they are present, and 0 elsewhere."""
    return np.stack([_centred(plane, present) for plane in planes])


def _centred(plane: Plane, present: Plane | None) -> Plane:
    if present is None:
        return plane - plane.mean()
    mean = float((plane * present).sum() / max(float(present.sum()), 1.0))
    return (plane - mean) * present


def to_frame(planes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Planes (3, H, W) at the frame's size."""
    return np.stack([resample(plane, (FRAME, FRAME)) for plane in planes])


def gains(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean signal of each band, estimated without the secret: sqrt(mean_b s_b^2 - 1), (K, L) -> (K,)."""
    return np.sqrt(np.maximum(np.mean(scores**2, axis=-1) - 1, MIN_GAIN**2))


def margins(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-likelihood ratio of 1 against 0 for every bit: sum_k 2 gain_k s_kb, (K, L) -> (L,)."""
    return 2 * gains(scores) @ scores


def evidence(scores: NDArray[np.float64]) -> float:
    """Log-likelihood ratio, in nats, of some mark against none: each bit is 0 or 1 with equal chance.

    sum_b log cosh(margin_b / 2) - L / 2 sum_k gain_k^2, with the gains estimated from the same scores.
    """
    half = np.abs(margins(scores)) / 2
    log_cosh = half + np.log1p(np.exp(-2 * half)) - np.log(2)
    return float(log_cosh.sum() - scores.shape[-1] / 2 * np.sum(gains(scores) ** 2))
