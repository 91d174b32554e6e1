"""Spread spectrum in a whitened picture: what a band of frequencies says of each bit.

A picture is resampled to a square frame of 512 x 512, split into luma and chroma, and whitened: luma is divided by
its local standard deviation. Coefficients of its cosine transform between two radii are a *band*. A keyed
permutation deals them to the bits, each with a keyed sign, and the score of bit b is the normalised correlation

    s_b = sum_i sign_i W_i / sqrt(sum_i W_i^2),       i over the coefficients of bit b,

a standard normal variable where there is no mark, whatever the picture is, because the signs are random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import dct, idct

from diffmark.pixel.keys import OperatorKey

Plane = NDArray[np.floating[Any]]  # (H, W), single precision
Box = tuple[float, float, float, float]  # left, top, right, bottom

FRAME = 512  # pixels a side of the frame
WINDOW = 11  # pixels a side of the window of local means
NOISE_FLOOR = 1.0  # grey levels: local deviations below it are taken for noise
CLIP = 2.5  # whitened values beyond it are outliers
OUTLIER = 3.0  # coefficients beyond so many deviations of their ring are clipped
AXIS_GUARD = 4  # coefficients next to an axis: straight edges of the frame and of objects
GRID = 128  # coefficient of a period of 8 pixels of the frame, the block grid of JPEG
GRID_GUARD = 2
MAX_AREA = 1024 * 1024  # pixels that a picture is read at
TO_PLANES = np.array(
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32
)  # Y, Cb, Cr of red, green, blue


def box(values: Plane, size: int = WINDOW) -> Plane:
    """Mean over a square window of odd size, the picture mirrored at its edges."""
    height, width = values.shape
    sums = _sums(_sums(_mirrored(values, size // 2), size, width, 1), size, height, 0)
    return sums * np.float32(1 / size**2)


def least(values: Plane, size: int) -> Plane:
    """Least value in a square window of odd size, the picture mirrored at its edges."""
    height, width = values.shape
    found, reach = _mirrored(values, size // 2), 1
    while 2 * reach <= size:
        found = np.minimum(found[:, :-reach], found[:, reach:])
        found = np.minimum(found[:-reach], found[reach:])
        reach *= 2
    far = size - reach  # two windows of `reach` cover one of `size`
    found = np.minimum(found[:, :width], found[:, far : far + width])
    return np.minimum(found[:height], found[far : far + height])


def _mirrored(values: Plane, border: int) -> Plane:
    """The picture with a border that repeats it backwards."""
    if border >= min(values.shape):  # more than once
        return np.pad(values, border, mode="symmetric")
    height, width = values.shape
    found = np.empty((height + 2 * border, width + 2 * border), values.dtype)
    rows, columns = slice(border, border + height), slice(border, border + width)
    found[rows, columns] = values
    found[rows, :border] = values[:, :border][:, ::-1]
    found[rows, border + width :] = values[:, width - border :][:, ::-1]
    found[:border] = found[border : 2 * border][::-1]
    found[border + height :] = found[height : height + border][::-1]
    return found


def _sums(values: Plane, size: int, count: int, axis: int) -> Plane:
    """`count` sums of `size` neighbours along an axis: sums of 1, 2, 4, ... that the digits of `size` call for."""

    def part(plane: Plane, start: int, stop: int) -> Plane:
        return plane[:, start:stop] if axis else plane[start:stop]

    total, power, start, step = None, values, 0, 1
    while True:
        if size & step:
            piece = part(power, start, start + count)
            total = piece if total is None else total + piece
            start += step
        if 2 * step > size:
            assert total is not None
            return total
        length = power.shape[axis] - step
        power = part(power, 0, length) + part(power, step, step + length)
        step *= 2


def whiten(luma: Plane, present: Plane | None = None, window: int = WINDOW) -> Plane:
    """(Y - local mean) / local deviation, clipped; zero where the picture is not `present` (weights in [0, 1])."""
    if present is None:
        detail = luma - box(luma, window)
        return _levelled(detail, box(detail * detail, window))
    white = np.zeros_like(luma)
    part = tuple(_filled(present, axis, window // 2) for axis in (0, 1))
    luma, present = luma[part], present[part]
    if luma.size:
        weight = np.maximum(box(present, window), 1e-3)
        detail = (luma - box(luma * present, window) / weight) * present
        white[part] = _levelled(detail, box(detail * detail, window) / weight)
    return white


def _levelled(detail: Plane, variance: Plane) -> Plane:
    white = detail / np.sqrt(np.maximum(variance, 0) + NOISE_FLOOR**2)
    return np.clip(white, -CLIP, CLIP, out=white)


def _filled(plane: Plane, axis: int, border: int = 0) -> slice:
    """The rows (axis 0) or columns that hold anything, and a border around them."""
    held = np.flatnonzero(plane.any(axis=1 - axis))
    if not len(held):
        return slice(0, 0)
    return slice(max(0, int(held[0]) - border), int(held[-1]) + 1 + border)


def scaled(window: int, shape: tuple[int, ...]) -> int:
    """The odd window, at least 3 pixels a side, that is to this shape what `window` is to the frame."""
    return 2 * max(1, round((window * math.sqrt(shape[0] * shape[1]) / FRAME - 1) / 2)) + 1


def planes(image: Image.Image) -> NDArray[np.float32]:
    """Luma, blue and red chroma of an RGB image, (3, H, W), levels of 0 ... 255; large ones at MAX_AREA pixels."""
    width, height = image.size
    scale = min(1.0, (MAX_AREA / (width * height)) ** 0.5)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    channels = [resample(np.asarray(image.getchannel(name), np.float32), size) for name in "RGB"]
    return np.tensordot(TO_PLANES, np.stack(channels), axes=1)


def resample(plane: Plane, size: tuple[int, int], part: Box | None = None) -> Plane:
    """A plane, or its part (left, top, right, bottom), at another (height, width), Lanczos, in floating point."""
    if plane.shape == size and part is None:
        return plane
    image = Image.fromarray(plane)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.LANCZOS, part))


def radius(size: int = FRAME) -> NDArray[np.float64]:
    """Cycles a frame of every coefficient of the cosine transform, (size, size)."""
    cycles = np.arange(size) / 2
    return np.hypot(cycles[:, None], cycles[None])


@dataclass(frozen=True, eq=False)
class Band:
    """The coefficients of one plane between two radii, dealt to `length` bits by a key."""

    name: str
    plane: int  # 0 luma, 1 blue, 2 red chroma
    low: float  # cycles a frame
    high: float
    length: int
    key: OperatorKey
    size: int = FRAME  # of the transform

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """Flat positions of the coefficients, away from the axes and from the grid of JPEG."""
        r, k = radius(self.size), np.arange(self.size)
        usable = (k >= AXIS_GUARD) & (np.abs(k - GRID) > GRID_GUARD) & (np.abs(k - 2 * GRID) > GRID_GUARD)
        inside = (r >= self.low) & (r < self.high) & (usable[:, None] & usable[None])
        return np.flatnonzero(inside)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The bit that each coefficient belongs to."""
        order = np.argsort(self.key.numbers(f"{self.name} permutation", len(self.index)), kind="stable")
        owner = np.empty(len(order), np.int64)
        owner[order] = np.arange(len(order)) % self.length
        return owner

    @cached_property
    def sign(self) -> NDArray[np.float32]:
        """+1 or -1 for each coefficient."""
        return 1 - 2 * (self.key.numbers(f"{self.name} signs", len(self.index)) & 1).astype(np.float32)

    @cached_property
    def ring(self) -> NDArray[np.int64]:
        """The ring of radii, four cycles wide, of each coefficient."""
        return (radius(self.size).ravel()[self.index] / 4).astype(np.int64)

    @property
    def reach(self) -> int:
        """Coefficients along an axis, from the lowest, that hold the band."""
        return min(self.size, math.ceil(2 * self.high))

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """Coefficients of each ring."""
        return np.maximum(np.bincount(self.ring), 1)

    def _positions(self, reach: int) -> NDArray[np.int64]:
        """Flat positions of the coefficients in the corner of the `reach` lowest ones a side."""
        if reach not in self._corners:
            row, column = np.divmod(self.index, self.size)
            self._corners[reach] = row * reach + column
        return self._corners[reach]

    @cached_property
    def _corners(self) -> dict[int, NDArray[np.int64]]:
        return {}

    def coefficients(self, transform: Plane) -> NDArray[np.float64]:
        """The band's coefficients in a transform, or its lowest part, each ring at unit deviation, clipped."""
        values = transform.ravel()[self._positions(transform.shape[1])].astype(np.float64)
        deviation = np.sqrt(np.bincount(self.ring, values**2) / self._counts)
        values *= (1 / np.maximum(deviation, 1e-6))[self.ring]
        return np.clip(values, -OUTLIER, OUTLIER, out=values)

    def scores(self, transform: Plane) -> NDArray[np.float64]:
        """Score of every bit, (length,)."""
        values = self.coefficients(transform)
        signal = np.bincount(self.owner, self.sign * values, self.length)
        energy = np.bincount(self.owner, values**2, self.length)
        return signal / np.sqrt(np.maximum(energy, 1e-12))

    def pattern(self, amplitudes: NDArray[np.float64], reach: int) -> Plane:
        """The `reach` x `reach` lowest part of a spectrum: `amplitudes[b]` times its sign where bit b is."""
        spectrum = np.zeros(reach * reach, np.float32)
        spectrum[self._positions(reach)] = self.sign * amplitudes.astype(np.float32)[self.owner]
        return spectrum.reshape(reach, reach)


def forward(plane: Plane, reach: int | None = None) -> Plane:
    """Orthonormal cosine transform, or its `reach` x `reach` lowest coefficients: zero where it has none."""
    held = _filled(plane, 0)  # in the view of a crop, few rows
    rows = np.zeros((len(plane), min(plane.shape[1], reach or plane.shape[1])), plane.dtype)
    rows[held] = dct(plane[held], axis=1, norm="ortho")[:, :reach]
    found = dct(rows, axis=0, norm="ortho", overwrite_x=True)[:reach]
    if reach is None or found.shape == (reach, reach):
        return found
    return np.pad(found, [(0, reach - size) for size in found.shape])


def lowest(plane: Plane, count: int) -> Plane:
    """The same for few coefficients, without computing the others."""
    height, width = plane.shape
    return _cosines(height, count) @ (plane @ _cosines(width, count).T)


@lru_cache(maxsize=8)
def _cosines(size: int, count: int) -> NDArray[np.float32]:
    """Rows of the transform along one axis, (count, size)."""
    rows = np.cos(np.pi / size * np.outer(np.arange(count), np.arange(size) + 0.5)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows.astype(np.float32)


def inverse(spectrum: Plane, shape: tuple[int, int] = (FRAME, FRAME)) -> Plane:
    """A plane of this shape of the lowest coefficients of a frame: what it cannot hold is left out.

    A cosine is sampled at the shape's own pixels, which is what resampling the frame without loss would give.
    """
    height, width = shape
    rows = idct(spectrum[:height, :width], axis=1, n=width, norm="ortho")
    return idct(rows, axis=0, n=height, norm="ortho") * np.float32(math.sqrt(height * width) / FRAME)
