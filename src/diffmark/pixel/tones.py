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

from diffmark.pixel.keys import OperatorKey
from diffmark.pixel.spectrum import FRAME, Plane

COUNT = 24
LOW, HIGH = 56.0, 112.0  # cycles a frame
APART = 3.0  # the least distance of two tones, in cycles
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

    def responses(
        self, white: Plane, frequencies: NDArray[np.float64], scale: float = FRAME
    ) -> NDArray[np.complex128]:
        """sum over pixels of w(x, y) exp(-2 pi i (fx x + fy y) / scale), x and y from the centre, (T,)."""
        height, width = white.shape
        y = (np.arange(height) - (height - 1) / 2) / scale
        x = (np.arange(width) - (width - 1) / 2) / scale
        angles = 2 * np.pi * np.outer(frequencies[:, 1], y)
        parts = np.concatenate([np.cos(angles), -np.sin(angles)]).astype(np.float32) @ white  # (2 T, width)
        rows = parts[: len(frequencies)] + 1j * parts[len(frequencies) :]
        return (rows * np.exp(-2j * np.pi * np.outer(frequencies[:, 0], x))).sum(axis=1)

    def level(self, white: Plane) -> NDArray[np.float64]:
        """Root mean power of a whitened frame next to each tone's frequency: what the tone has to stand out of."""
        offsets = ((2, 0), (-2, 0), (0, 2), (0, -2), (2, 2), (-2, 2))
        power = [np.abs(self.responses(white, self.frequencies + offset)) ** 2 for offset in offsets]
        return np.sqrt(np.mean(power, axis=0))

    def waves(self, amplitudes: NDArray[np.float64], size: int = FRAME) -> Plane:
        """sum_t amplitude_t cos(2 pi k_t . (x, y) + phase_t), x and y from 0 to 1 over the frame."""
        c = (np.arange(size) + 0.5) / size
        columns = np.exp(2j * np.pi * np.outer(self.frequencies[:, 0], c))
        rows = np.exp(2j * np.pi * np.outer(self.frequencies[:, 1], c))
        rows *= (amplitudes * np.exp(1j * self.phases))[:, None]
        return (rows.T @ columns).real.astype(np.float32)
