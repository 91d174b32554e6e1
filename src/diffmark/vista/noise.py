"""Tileable noise that the painter samples: built once by spectral synthesis, then only indexed."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float32 throughout; numpy's stubs widen every second expression

TILE = 1024  # side of every tile; a power of two so that wrapping is a bit mask


@lru_cache(maxsize=32)
def tile(roughness: float, stretch: float = 1.0) -> Array:
    """A (TILE, TILE) tileable field with a 1/f^roughness spectrum and uniform values in [0, 1].

    `stretch` > 1 makes the field longer in x than in y, as clouds and strata are.
    """
    rng = np.random.default_rng([int(roughness * 100), int(stretch * 100)])
    fy = np.fft.fftfreq(TILE)[:, None] * TILE
    fx = np.fft.rfftfreq(TILE)[None] * TILE
    frequency = np.sqrt(fy**2 + (fx * stretch) ** 2)
    # Below four periods a tile would have no detail inside one 256 px window.
    amplitude = np.where(frequency < 4, 0.0, np.maximum(frequency, 4.0) ** -roughness)
    spectrum = amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape))
    field = np.fft.irfft2(spectrum, s=(TILE, TILE))
    rank = np.empty(TILE * TILE, np.float32)
    rank[np.argsort(field, axis=None)] = np.linspace(0, 1, TILE * TILE, dtype=np.float32)
    return rank.reshape(TILE, TILE)


def window(rng: np.random.Generator, field: Array, height: int, width: int) -> Array:
    """A random (height, width) view of a tile."""
    y, x = rng.integers(0, TILE - height), rng.integers(0, TILE - width)
    return field[y : y + height, x : x + width]


def lookup(field: Array, y: Array, x: Array) -> Array:
    """The tile at any coordinates, bilinear, wrapped around its edges."""
    row, column = np.floor(y), np.floor(x)
    fy, fx = (y - row).astype(np.float32), (x - column).astype(np.float32)
    mask = TILE - 1
    y0, x0 = row.astype(np.int32) & mask, column.astype(np.int32) & mask
    y1, x1 = (y0 + 1) & mask, (x0 + 1) & mask
    upper = field[y0, x0] * (1 - fx) + field[y0, x1] * fx
    lower = field[y1, x0] * (1 - fx) + field[y1, x1] * fx
    return upper * (1 - fy) + lower * fy


def profile(
    rng: np.random.Generator, width: int, cells: float, gain: float, octaves: int, smooth: bool
) -> Array:
    """A 1-D fractal line of `width` samples, scaled to [0, 1]; `smooth` rounds its peaks."""
    line = np.zeros(width, np.float32)
    amplitude, x = 1.0, np.arange(width) / width
    for _ in range(octaves):
        knots = rng.random(int(cells) + 3)
        at = x * cells + rng.random()
        index = at.astype(int)
        t = at - index
        if smooth:
            t = t * t * (3 - 2 * t)
        line += (amplitude * (knots[index] * (1 - t) + knots[index + 1] * t)).astype(np.float32)
        amplitude *= gain
        cells *= 2.1
    return (line - line.min()) / max(float(np.ptp(line)), 1e-6)
