"""Lean: what a decoder says about every unmarked image, whoever's secret is asked for.

Bits of a trained decoder that are read more often as 1 than as 0 from unmarked images favour the secrets that agree
with them, and so do bits that go together: such accounts would be accused more often than the stated rate. Margins
are therefore whitened by what unmarked images have in common,

    u = m / mean|m|,      v = W (u - c),      w = v * mean|m| / mean|v|,      W = C^(-1/2),

with c the mean and C the covariance of u over unmarked images (symmetric whitening, which stays nearest to the bits
themselves). Dividing by the image's own level first keeps a few images with large margins from deciding. An image
keeps its mean |margin|: the evidence that blind verdicts are calibrated by is the same with and without it.
"""

from __future__ import annotations

import base64
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
        whitening = vectors / np.sqrt(values) @ vectors.T
        return cls(centre.round(5), whitening.astype(np.float16).astype(float))  # as files hold it

    def whitened(self, margins: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Margins (..., L) without lean; every image keeps its mean |margin|."""
        level = _level(margins)
        white = (margins / level - self.centre) @ self.whitening
        return white * (level / _level(white))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the matrix as half-precision numbers in base64, little-endian, row by row."""
        halves = self.whitening.astype("<f2").tobytes()
        return {"centre": self.centre.tolist(), "whitening": base64.b64encode(halves).decode()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Lean:
        centre = np.asarray(values["centre"], float)
        halves = np.frombuffer(base64.b64decode(values["whitening"], validate=True), "<f2").astype(float)
        if centre.ndim == 1 and halves.size == centre.size**2 and np.isfinite(halves).all():
            return cls(centre, halves.reshape(centre.size, centre.size))
        raise ValueError(
            f"a lean has a centre (L,) and a whitening of L^2 numbers, got {centre.shape}, {halves.shape}"
        )


def _level(margins: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    return np.maximum(np.mean(np.abs(margins), axis=-1, keepdims=True), 1e-9)


def _unit(margins: NDArray[np.float64]) -> NDArray[np.float64]:
    return margins / _level(margins)
