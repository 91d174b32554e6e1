"""Replay for the DDIM path: it is detached, so its latents may be made less often than they are used.

The path costs 2N denoiser calls with guidance (100 at N = 50) against the bridge's K. The buffer keeps the last
(z0, secret, clean z0) triples; a fresh batch enters every few steps, and every step trains the decoder on a draw
from the buffer. The encoder moves slowly (5e-5), so triples of some hundred steps ago are still its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diffmark.training.draws import Draws

Triple = tuple[Tensor, Tensor, Tensor]  # marked z0 (B, C, h, w), secrets (B, L), clean z0 (B, C, h, w)


class Replay:
    """The last `capacity` triples, in a ring."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._stored: list[Tensor] = []  # three tensors of up to `capacity` rows
        self._next = 0  # the oldest row, once the ring is full

    def __len__(self) -> int:
        return len(self._stored[0]) if self._stored else 0

    def push(self, fresh: Triple) -> None:
        """Add a batch of at most `capacity` rows; the oldest rows go first."""
        rows = [part.detach() for part in fresh]
        if len(rows[0]) > self.capacity:
            raise ValueError(f"a batch of {len(rows[0])} does not fit a replay buffer of {self.capacity}")
        if not self._stored:
            self._stored = [part[:0] for part in rows]
        room = self.capacity - len(self)
        self._stored = [torch.cat([old, new[:room]]) for old, new in zip(self._stored, rows, strict=True)]
        places = (self._next + torch.arange(len(rows[0][room:]))) % self.capacity
        for old, new in zip(self._stored, rows, strict=True):
            old[places.to(old.device)] = new[room:]
        self._next = (self._next + len(places)) % self.capacity

    def draw(self, draws: Draws, count: int) -> Triple:
        """`count` rows, with replacement."""
        rows = draws.indices(count, len(self)).to(self._stored[0].device)
        marked, secrets, clean = (part[rows] for part in self._stored)
        return marked, secrets, clean

    def state_dict(self) -> dict[str, Any]:
        return {"stored": self._stored, "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stored, self._next = list(state["stored"]), state["next"]
