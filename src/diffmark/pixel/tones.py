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
    def _columns(self) -> NDArray[np.float64]:
        """Phases of kx x over the columns of the frame, x from 0 to 1, (COUNT, 512)."""
        return 2 * np.pi * np.outer(self.frequencies[:, 0], (np.arange(FRAME) + 0.5) / FRAME)

    @cached_property
    def _rows(self) -> NDArray[np.float64]:
        """Phases of ky y and the tone's own over the rows, (COUNT, 512)."""
        return (
            2 * np.pi * np.outer(self.frequencies[:, 1], (np.arange(FRAME) + 0.5) / FRAME)
            + self.phases[:, None]
        )

    def responses(self, white: Plane) -> NDArray[np.float64]:
        """sum over the pixels of a frame of w(x, y) cos(2 pi k_t . (x, y) + phase_t), (COUNT,)."""
        rows = np.concatenate([np.cos(self._rows), np.sin(self._rows)]).astype(np.float32) @ white
        cos, sin = rows[: len(self.phases)], rows[len(self.phases) :]
        return (cos * np.cos(self._columns) - sin * np.sin(self._columns)).sum(axis=1)

    def level(self, white: Plane) -> NDArray[np.float64]:
        """Root mean power of a whitened frame around each tone's frequency: what the tone has to stand out of."""
        spectrum = rfft2(white)
        power = spectrum.real**2 + spectrum.imag**2
        kx, ky = np.rint(self.frequencies).astype(int).T
        flip = np.where(kx < 0, -1, 1)  # the other half of the spectrum says the same
        around = [power[(flip * ky + y) % FRAME, flip * kx + x] for x, y in NEIGHBOURS]
        return np.sqrt(np.mean(around, axis=0))

    def waves(self, amplitudes: NDArray[np.float64]) -> Plane:
        """sum_t amplitude_t cos(2 pi k_t . (x, y) + phase_t), x and y from 0 to 1 over the frame."""
        amplitude = amplitudes[:, None]
        rows = np.concatenate([amplitude * np.cos(self._rows), -amplitude * np.sin(self._rows)])
        columns = np.concatenate([np.cos(self._columns), np.sin(self._columns)])
        return rows.T.astype(np.float32) @ columns.astype(np.float32)
