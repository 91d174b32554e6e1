"""A fast estimate of SSIMULACRA2, so that the strength of a mark can be stated as what people see.

SSIMULACRA2 compares two pictures by maps of structural similarity and of edges, in the opponent colours XYB, at six
scales. For marks of this layer six means of its similarity maps say nearly as much: luminance at four scales, the
red-green and the blue-yellow axis at one. Their weights were fitted to the real metric
(`benchmarks/pixel_visibility.py`, which also measures how far the estimate is off).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.pixel.spectrum import Plane, box

# (channel of XYB, scale) -> weight; similarity maps enter by their means.
WEIGHTS = {
    (0, 0): 226.66,
    (1, 0): 30.77,
    (1, 1): 35.81,
    (1, 2): 350.22,
    (1, 3): 930.86,
    (2, 0): 497.93,
}
SCALES = (1, 4, 1)  # scales that each channel is needed at
EXPONENT = 0.6276  # of SSIMULACRA2's last step
# Pixels of the smaller side -> what a mark costs there, over what the weights say: its patterns are finer.
SIDES = (96, 120, 128, 200, 256, 384, 512)
SHARES = (0.85, 0.85, 0.33, 0.36, 0.6, 0.75, 1.0)
STABILISER = 0.0009
WINDOW = 5
OPSIN = np.array(
    [[0.3, 0.622, 0.078], [0.23, 0.692, 0.078], [0.24342269, 0.20476745, 0.55180986]], np.float32
)  # of linear light
BIAS = 0.0037931
_LEVELS = np.arange(256) / 255
LINEAR = np.where(_LEVELS <= 0.04045, _LEVELS / 12.92, ((_LEVELS + 0.055) / 1.055) ** 2.4).astype(np.float32)


def xyb(pixels: NDArray[np.uint8]) -> list[Plane]:
    """The positive XYB planes that SSIMULACRA2 compares, from sRGB (H, W, 3)."""
    long, middle, short = np.cbrt(LINEAR.take(pixels) @ OPSIN.T + BIAS).transpose(2, 0, 1)
    y = (long + middle) / 2
    return [(long - middle) * 7 + 0.42, y - 0.145, short - y + 0.55]


def _halved(plane: Plane) -> Plane:
    height, width = plane.shape[0] // 2 * 2, plane.shape[1] // 2 * 2
    plane = plane[:height, :width]
    return (plane[::2, ::2] + plane[1::2, ::2] + plane[::2, 1::2] + plane[1::2, 1::2]) / 4


class Visibility:
    """Compares marked pictures with one cover."""

    def __init__(self, cover: Image.Image) -> None:
        self._share = float(np.interp(min(cover.size), SIDES, SHARES))
        self._cover = {place: (plane, *_moments(plane)) for place, plane in _pyramid(cover)}

    def ssimulacra2(self, marked: Image.Image) -> float:
        """Estimate for a marked picture of the same size: 100 is the cover, 90 cannot be told from it."""
        errors = self.errors(marked)
        return 100 - 10 * (self._share * sum(WEIGHTS[place] * errors[place] for place in WEIGHTS)) ** EXPONENT

    def errors(self, marked: Image.Image) -> dict[tuple[int, int], float]:
        """Mean of 1 - similarity by channel and scale: what the weights are for."""
        found = {}
        for place, plane in _pyramid(marked):
            cover, mean, variance = self._cover[place]
            other_mean, other_variance = _moments(plane)
            covariance = box(cover * plane, WINDOW) - mean * other_mean
            structure = (2 * covariance + STABILISER) / (variance + other_variance + STABILISER)
            error = np.maximum(1 - (1 - (mean - other_mean) ** 2) * structure, 0)
            found[place] = float(error.mean())
        return found


def _pyramid(image: Image.Image) -> list[tuple[tuple[int, int], Plane]]:
    found = []
    for channel, plane in enumerate(xyb(np.asarray(image))):
        for scale in range(SCALES[channel]):
            found.append(((channel, scale), plane))
            if min(plane.shape) >= 2 * WINDOW:
                plane = _halved(plane)
    return found


def _moments(plane: Plane) -> tuple[Plane, Plane]:
    mean = box(plane, WINDOW)
    return mean, box(plane * plane, WINDOW) - mean * mean
