"""The random numbers of one part of one training step.

They come from generators that are seeded by (seed, step, part), on the CPU. A run that was stopped and resumed then
draws what an uninterrupted one does without any state of generators being saved, and part k of a step is the same
batch whether one process accumulates the parts or several share them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Draws:
    """Random tensors of a step, on `device`; `torch` and `numpy` are its generators, both on the CPU."""

    def __init__(self, seed: int, step: int, part: int = 0, device: torch.device | str = "cpu") -> None:
        sequence = np.random.SeedSequence([seed, step, part])
        self.torch = torch.Generator().manual_seed(
            int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
        )
        self.numpy = np.random.default_rng(sequence)
        self.device = device

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.torch).to(self.device)

    def secrets(self, count: int, length: int) -> Tensor:
        """Bernoulli(1/2) bits, (count, length)."""
        return torch.randint(2, (count, length), generator=self.torch).to(self.device)

    def indices(self, count: int, below: int) -> Tensor:
        """`count` indices, drawn with replacement; on the CPU."""
        return torch.randint(below, (count,), generator=self.torch)

    def uniform(self) -> float:
        return float(torch.rand((), generator=self.torch))

    def uniforms(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.torch).to(self.device)

    def choose(self, names: Sequence[str], count: int) -> list[str]:
        """`count` different names, or all of them."""
        order = torch.randperm(len(names), generator=self.torch)[:count]
        return [names[int(i)] for i in order]
