"""The channel between delta and what a detector sees, measured on an autoencoder as two small convolutions.

Around the latents of a picture the autoencoder is nearly linear: D(z + delta) - D(z) is about `cost` applied to
delta (what the mark does to pixels) and E(D(z + delta)) - E(D(z)) about `transfer` applied to it (what comes back).
Both are least-squares fits over pictures and random deltas; what they leave unexplained is kept as two variances a
unit of delta's variance. Training against them costs a hundredth of a round trip.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.training.chance import Chance
from diffmark.vae import decode, encode

SIGMA = 0.1  # of the random deltas


@dataclass(frozen=True)
class Channel:
    """What an autoencoder does to a small delta."""

    cost: Tensor  # (192, C, 3, 3): latents to the 8 x 8 pixels of each, three colours
    transfer: Tensor  # (C, C, 3, 3)
    cost_rest: float  # variance of pixels that `cost` does not explain, a unit of delta's variance
    transfer_rest: float  # the same of latents

    def pixel_error(self, delta: Tensor) -> Tensor:
        """Mean squared difference that delta makes in pixels in [-1, 1], (B, C, h, w) -> (B,)."""
        explained = F.conv2d(delta, self.cost, padding=1).square().flatten(1).mean(dim=1)
        return explained + self.cost_rest * delta.square().flatten(1).mean(dim=1)

    def scaled(self, delta: Tensor, psnr: float) -> Tensor:
        """Each delta at the strength that the channel predicts this PSNR for, in dB."""
        target = 4 / 10 ** (psnr / 10)
        return delta * (target / self.pixel_error(delta).clamp_min(1e-12)).sqrt()[:, None, None, None]

    def received(self, delta: Tensor, chance: Chance) -> Tensor:
        """What a round trip leaves of delta, noise included."""
        noise = chance.normal(*delta.shape) * delta.detach().std() * self.transfer_rest**0.5
        return F.conv2d(delta, self.transfer, padding=1) + noise

    def state(self) -> dict[str, Any]:
        return dict(vars(self))


@torch.no_grad()
def measure_channel(autoencoder: Any, pictures: Iterator[Tensor], seed: int = 0) -> Channel:
    """Fit it over batches of pictures (B, 3, H, W) in [-1, 1]."""
    inputs, pixels, latents = [], [], []
    for number, batch in enumerate(pictures):
        z = encode(autoencoder, batch)
        delta = SIGMA * Chance(seed, number).normal(*z.shape)
        clean, marked = decode(autoencoder, z), decode(autoencoder, z + delta)
        back = encode(autoencoder, marked.clamp(-1, 1)) - encode(autoencoder, clean.clamp(-1, 1))
        inputs.append(_rows(F.unfold(delta, 3, padding=1)))
        pixels.append(_rows(F.pixel_unshuffle(marked - clean, 8).flatten(2)))
        latents.append(_rows(back.flatten(2)))
    seen, channels = torch.cat(inputs), z.shape[1]
    cost, cost_rest = _fit(seen, torch.cat(pixels))
    transfer, transfer_rest = _fit(seen, torch.cat(latents))
    shape = (-1, channels, 3, 3)
    return Channel(cost.T.reshape(shape), transfer.T.reshape(shape), cost_rest, transfer_rest)


def _rows(columns: Tensor) -> Tensor:
    """(B, features, positions) -> (B * positions, features)."""
    return columns.transpose(1, 2).flatten(0, 1)


def _fit(inputs: Tensor, outputs: Tensor) -> tuple[Tensor, float]:
    weights = torch.linalg.lstsq(inputs, outputs).solution
    rest = (outputs - inputs @ weights).square().mean() / SIGMA**2
    return weights, float(rest)
