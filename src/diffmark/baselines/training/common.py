"""What the baselines' training jobs share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.training.loop import Job, LoopConfig, train_network
from diffmark.vista.training.data import Picture, random_crops


def picture_batch(
    rng: np.random.Generator,
    scenes: Picture,
    photos: list[Picture],
    count: int,
    side: int,
    photo_share: float,
) -> Tensor:
    """Scenes and 256-pixel parts of photographs at `side` pixels, (count, 3, side, side) in [-1, 1]."""
    whole = random_crops(rng, scenes, photos, count, scenes.shape[1], photo_share)
    return F.interpolate(whole, (side, side), mode="area")


def random_signs(count: int, bits: int, generator: torch.Generator) -> Tensor:
    """Random secrets as -1 and 1, (count, bits)."""
    return 2.0 * torch.randint(2, (count, bits), generator=generator) - 1


def accuracy(logits: Tensor, secrets: Tensor) -> Tensor:
    """Share of bits whose sign is right."""
    return ((logits > 0) == (secrets > 0)).float().mean()


def annealed(first: float, last: float, done: float) -> float:
    """From `first` to `last` by a constant factor a step, as `done` goes from 0 to 1."""
    return float(first * (last / first) ** min(max(done, 0.0), 1.0))


def train_stage(job: Job, loop: LoopConfig, folder: Path, stop_after: int | None) -> bool:
    """One stage of several: train, take the weights over, say whether all of its steps are done."""
    weights, complete = train_network(job, loop, folder, stop_after)
    job.model.load_state_dict(weights)
    return complete
