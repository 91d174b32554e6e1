"""Tones: a keyed constellation of sinusoids that shows how a picture was turned, scaled, mirrored and moved.

A sinusoid of k = (kx, ky) cycles a frame becomes one of A^T k under an affine map of the picture. All tones move
together, so the spectrum's log-polar map, shifted and added at every tone, peaks at the rotation and scale, and the
phases of the tones then peak at the position. Nothing here sees a secret.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.fft import rfft2

from diffmark.pixel.keys import OperatorKey
from diffmark.pixel.spectrum import FRAME, Plane

COUNT = 24
LOW, HIGH = 56.0, 112.0  # cycles a frame
APART = 3.0  # the least distance of two tones, in cycles
NEIGHBOURS = ((2, 0), (-2, 0), (0, 2), (0, -2), (2, 2), (-2, -2), (2, -2), (-2, 2))  # cycles from a tone
HIGHEST = 0.46  # cycles a pixel that a mark is written at
SHAPES = 8  # whose cosines are kept
STEPS = 64  # frequencies are multiples of 1 / STEPS cycles


@dataclass(frozen=True, eq=False)
class Tones:
    """Frequencies and phases of one key."""

    key: OperatorKey

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """(COUNT, 2) as (kx, ky), cycles a frame, uniform in the half ring LOW ... HIGH."""
        numbers = self.key.numbers("tone frequencies", 64 * COUNT).astype(np.int64)
        span = int(2 * HIGH * STEPS)
        drawn = np.stack([numbers[::2] % span - span // 2, numbers[1::2] % (span // 2)], 1) / STEPS
        kept: list[NDArray[np.float64]] = []
        for point in drawn:
            if not LOW <= math.hypot(*point) < HIGH:
                continue
            if all(min(math.hypot(*(point - k)), math.hypot(*(point + k))) >= APART for k in kept):
                kept.append(point)
            if len(kept) == COUNT:
                return np.array(kept)
        raise AssertionError("too few numbers for a constellation")  # p < 1e-100

    @cached_property
    def phases(self) -> NDArray[np.float64]:
        """(COUNT,), radians, uniform."""
        return self.key.numbers("tone phases", COUNT) / 2**32 * 2 * np.pi

    @cached_property
    def _grids(self) -> dict[tuple[int, int], tuple[NDArray[np.float32], NDArray[np.float32]]]:
        return {}

    def _grid(self, shape: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin of ky y + phase over the rows and of kx x over the columns, (2 COUNT, size) each."""
        grid = self._grids.get(shape)
        if grid is None:
            height, width = ((np.arange(size) + 0.5) / size for size in shape)
            rows = 2 * np.pi * np.outer(self.frequencies[:, 1], height) + self.phases[:, None]
            columns = 2 * np.pi * np.outer(self.frequencies[:, 0], width)
            pair = [np.concatenate([np.cos(p), np.sin(p)]).astype(np.float32) for p in (rows, columns)]
            grid = (pair[0], pair[1])
            if len(self._grids) >= SHAPES:
                self._grids.clear()  # perhaps under another thread's eyes: it holds the grid that it found
            self._grids[shape] = grid
        return grid

    def responses(self, white: Plane) -> NDArray[np.float64]:
        """sum over the pixels of a picture of w(x, y) cos(2 pi k_t . (x, y) + phase_t), (COUNT,)."""
        rows, columns = self._grid(white.shape)
        count = len(self.phases)
        sums = (rows @ white) * columns  # cos cos, sin sin
        return (sums[:count] - sums[count:]).sum(axis=1, dtype=np.float64)

    def level(self, white: Plane) -> NDArray[np.float64]:
        """Root mean power of a whitened picture around each tone's frequency: what it has to stand out of."""
        spectrum = rfft2(white)
        power = spectrum.real**2 + spectrum.imag**2
        kx, ky = np.rint(self.frequencies).astype(int).T
        flip = np.where(kx < 0, -1, 1)  # the other half of the spectrum says the same
        height, last = power.shape[0], power.shape[1] - 1  # small pictures do not hold all tones
        around = [
            power[(flip * ky + y) % height, np.minimum(np.abs(flip * kx + x), last)] for x, y in NEIGHBOURS
        ]
        return np.sqrt(np.mean(around, axis=0))

    def waves(self, amplitudes: NDArray[np.float64], shape: tuple[int, int] = (FRAME, FRAME)) -> Plane:
        """sum_t amplitude_t cos(2 pi k_t . (x, y) + phase_t), x and y from 0 to 1 over a picture of this shape.

        Tones that its pixels cannot hold are left out.
        """
        rows, columns = self._grid(shape)
        held = (np.abs(self.frequencies) < HIGHEST * np.array(shape[::-1])).all(axis=1)
        amplitude = np.where(held, amplitudes, 0.0).astype(np.float32)[:, None]
        return rows.T @ (np.concatenate([amplitude, -amplitude]) * columns)
