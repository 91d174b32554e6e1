"""Means of what is logged, over the steps since the last line."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningMeans:
    """Sums named scalars; a name that is missing in some steps is averaged over those that have it."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, scalars: dict[str, Tensor]) -> dict[str, float]:
        """Add one step (or part of one); returns its values as numbers, fetched from the device at once."""
        fetched = torch.stack([value.detach().float().cpu() for value in scalars.values()]).tolist()
        values = dict(zip(scalars, fetched, strict=True))
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        return values

    def means(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means
