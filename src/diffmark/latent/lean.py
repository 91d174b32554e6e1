"""Lean: what a decoder says about every unmarked image, whoever's secret is asked for.

Bits of a trained decoder that are read more often as 1 than as 0 from unmarked images favour the secrets that agree
with them, and so do bits that go together: such accounts would be accused more often than the stated rate. Margins
are therefore whitened by what unmarked images have in common,

    u = m / rms(m),      w = rms(m) * W (u - c),      W = C^(-1/2),

with c the mean and C the covariance of u over unmarked images (symmetric whitening, which stays nearest to the bits
themselves). Dividing by the image's own level first keeps a few images with large margins from deciding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHRINK = 0.1  # of the covariance towards the unit matrix: fewer images tell it less well


@dataclass(frozen=True, eq=False)
class Lean:
    """Centre (L,) and whitening (L, L) of the margins of unmarked images."""

    centre: NDArray[np.float64]
    whitening: NDArray[np.float64]

    @classmethod
    def measure(cls, margins: NDArray[np.float64]) -> Lean:
        """From margins of unmarked images, (N, L)."""
        unit = _unit(margins)
        centre = unit.mean(axis=0)
        covariance = (unit - centre).T @ (unit - centre) / len(unit)
        length = len(centre)
        covariance = (1 - SHRINK) * covariance + SHRINK * np.trace(covariance) / length * np.eye(length)
        values, vectors = np.linalg.eigh(covariance)
        return cls(centre.round(5), (vectors / np.sqrt(values) @ vectors.T).round(4))

    def whitened(self, margins: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Margins (..., L) without lean; their size is kept on the whole."""
        level = _level(margins)
        return level * ((margins / level - self.centre) @ self.whitening)

    def to_dict(self) -> dict[str, Any]:
        return {"centre": self.centre.tolist(), "whitening": self.whitening.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Lean:
        centre, whitening = np.asarray(values["centre"], float), np.asarray(values["whitening"], float)
        if centre.ndim != 1 or whitening.shape != (len(centre), len(centre)):
            raise ValueError(
                f"a lean has a centre (L,) and a whitening (L, L), got {centre.shape}, {whitening.shape}"
            )
        return cls(centre, whitening)


def _level(margins: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    return np.maximum(np.sqrt(np.mean(np.square(margins), axis=-1, keepdims=True)), 1e-9)


def _unit(margins: NDArray[np.float64]) -> NDArray[np.float64]:
    return margins / _level(margins)
