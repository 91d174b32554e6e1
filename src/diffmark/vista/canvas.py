"""The painter's canvas: the picture so far, the light it stands in, and how to lay paint on it."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from diffmark.vista.noise import Array


@dataclass(frozen=True)
class Light:
    """Colours of an hour of the day, RGB in [0, 1]; `sun` multiplies what is lit, `shade` what is not."""

    zenith: tuple[float, float, float]
    middle: tuple[float, float, float]
    horizon: tuple[float, float, float]
    sun: tuple[float, float, float]
    shade: tuple[float, float, float]


LIGHTS = {
    "dawn": Light(
        (0.42, 0.53, 0.78), (0.80, 0.72, 0.82), (1.00, 0.84, 0.76), (1.00, 0.86, 0.82), (0.58, 0.56, 0.70)
    ),
    "noon": Light(
        (0.14, 0.38, 0.78), (0.42, 0.66, 0.92), (0.80, 0.91, 0.98), (1.05, 1.03, 0.97), (0.58, 0.65, 0.76)
    ),
    "sunset": Light(
        (0.30, 0.22, 0.42), (0.88, 0.42, 0.28), (1.00, 0.72, 0.26), (1.05, 0.68, 0.42), (0.44, 0.30, 0.40)
    ),
    "dusk": Light(
        (0.13, 0.10, 0.34), (0.40, 0.22, 0.52), (0.86, 0.44, 0.58), (0.62, 0.50, 0.66), (0.30, 0.26, 0.42)
    ),
    "night": Light(
        (0.02, 0.04, 0.13), (0.05, 0.11, 0.26), (0.13, 0.24, 0.43), (0.34, 0.43, 0.62), (0.13, 0.18, 0.32)
    ),
}


@dataclass
class Canvas:
    """A picture in the making: `image` (s, s, 3) float32 in [0, 1], row `horizon`, light from `sun_x`."""

    image: Array
    rng: np.random.Generator
    horizon: int
    sun_x: float
    zenith: Array
    middle: Array
    haze: Array
    sun: Array
    shade: Array
    disc: tuple[float, float] | None = None  # row and radius of sun or moon, once painted

    @property
    def size(self) -> int:
        return self.image.shape[0]

    @property
    def unit(self) -> float:
        """One pixel of a 256 px picture, in pixels of this one."""
        return self.size / 256

    @property
    def grid(self) -> tuple[Array, Array]:
        return grid(self.size)

    def lit(self, amount: Array) -> Array:
        """The light on surfaces of brightness `amount` (...) in [0, 1], as (..., 3)."""
        return self.shade + (self.sun - self.shade) * amount[..., None]

    def lay(self, mask: Array, paint: ArrayLike, rows: slice = slice(None)) -> None:
        """Cover the picture with `paint` (h, w, 3) or (3,) where `mask` (h, w) is one."""
        part = self.image[rows]
        part += mask[..., None] * (np.asarray(paint, np.float32) - part)


@lru_cache(maxsize=4)
def grid(size: int) -> tuple[Array, Array]:
    """Row and column numbers (s, 1) and (1, s)."""
    line = np.arange(size, dtype=np.float32)
    return line[:, None], line[None]


def colour(*rgb: float) -> Array:
    return np.array(rgb, np.float32)


def mix(a: ArrayLike, b: ArrayLike, t: ArrayLike) -> Array:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return a + (b - a) * np.asarray(t, np.float32)


def ramp(x: Array, low: float, high: float) -> Array:
    """Zero below `low`, one above `high`, smooth in between."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)
