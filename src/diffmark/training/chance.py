"""The random numbers of one part of one training step.

They come from a generator that is seeded by (seed, step, part), on the CPU. A run that was stopped and resumed then
draws what an uninterrupted one does without any state of generators being saved, and part k of a step is the same
batch whether one process accumulates the parts or several share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Chance:
    """Draws of a step, on `device`."""

    def __init__(self, seed: int, step: int, part: int = 0, device: torch.device | str = "cpu") -> None:
        state = np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0]
        self.generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
        self.device = device

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device)

    def secrets(self, count: int, length: int) -> Tensor:
        """Bernoulli(1/2) bits, (count, length)."""
        return torch.randint(2, (count, length), generator=self.generator).to(self.device)

    def indices(self, count: int, below: int) -> Tensor:
        """`count` indices, drawn with replacement; on the CPU."""
        return torch.randint(below, (count,), generator=self.generator)

    def uniform(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def uniforms(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator).to(self.device)

    def choose(self, names: Sequence[str], count: int) -> list[str]:
        """`count` different names, or all of them."""
        order = torch.randperm(len(names), generator=self.generator)[:count]
        return [names[int(i)] for i in order]
