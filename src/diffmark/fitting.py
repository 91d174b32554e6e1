"""A delta fitted to its picture: the same strength, shared among the bits so that most of them are read well.

The picture's own latents are the noise that a mark is read in, and where the mark is added to z0 that noise is
known. A bit that the picture says already needs nothing, one that it contradicts needs more, and one that it
contradicts too loudly is left to error correction. A bit's margin is nearly a straight line in its weight,
m_b = host_b + gain * a_b, so weights follow from looking at the picture as a detector would; another look takes in
what is not straight. The detector is the same as for any other delta.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diffmark.codec import Codec, rescale, spread
from diffmark.secret import SecretLike, as_secrets
from diffmark.vae import decode, encode

LOOKS = 2  # at weights that were solved for
CLIMBS = 4  # slopes that are followed
ENOUGH = 0.9  # of the bits, below which a climb has failed
TAMED = 10.0  # what margins are divided by in a climb, so that bits that are read already go on rising
NEVER = 1e6  # a host so high that its bit gets nothing

# native delta (B, C, h, w) -> logits (B, L, 2) of the picture marked with it
Read = Callable[[Tensor], Tensor]


@torch.no_grad()
def fitted_weights(codec: Codec, secrets: SecretLike, unmarked: Tensor, read: Read) -> Tensor:
    """Weights (B, L) of the bits, of mean square 1: of all that were looked at, those that promise most.

    `unmarked` are the logits (B, L, 2) of the pictures as they are.
    """
    bits = as_secrets(secrets, codec.config.length)
    signs = torch.from_numpy(2.0 * bits - 1)  # in float64, which not every device has

    def margins(logits: Tensor) -> Tensor:
        logits = logits.float().cpu().double()
        return (logits[..., 1] - logits[..., 0]) * signs

    weights = torch.ones_like(signs)
    plain = codec.delta(bits)
    host, found = margins(unmarked), margins(read(plain))
    gain = (found - host).mean(dim=1, keepdim=True).clamp_min(1e-6)
    best, most = weights, promise(found)
    for _ in range(LOOKS):
        weights = share_out(found - gain * weights, gain)
        found = margins(read(codec.delta(bits, weights=weights.to(plain))))
        better = promise(found) > most
        best = torch.where(better[:, None], weights, best)
        most = torch.where(better, promise(found), most)
    return best.to(plain)


def promise(margins: Tensor) -> Tensor:
    """How many bits (..., L) of these margins will be right: a margin is a logarithm of odds."""
    return margins.sigmoid().sum(dim=-1)


def share_out(host: Tensor, gain: Tensor) -> Tensor:
    """Weights a >= 0 (B, L) of mean square 1 for which margins host + gain * a promise most.

    All bits but the lowest few get the same level, or stay above it; how few is tried out.
    """
    best, most = torch.ones_like(host), promise(host + gain)
    ranks = host.argsort(dim=1).argsort(dim=1)
    for left in range(host.shape[1]):
        weights = fill(torch.where(ranks < left, NEVER, host / gain))
        better = promise(host + gain * weights) > most
        best = torch.where(better[:, None], weights, best)
        most = torch.where(better, promise(host + gain * weights), most)
    return best


def fill(host: Tensor) -> Tensor:
    """Weights a >= 0 (B, L) of mean square 1 that make the least of host + a as great as can be.

    As water fills a vessel: a = max(level - host, 0), and the k lowest bits are under water where the level that
    they alone would give lies above the highest of them.
    """
    length = host.shape[1]
    lifted = host - host.amin(dim=1, keepdim=True)
    ordered = lifted.sort(dim=1).values
    count = torch.arange(1, length + 1, device=host.device)
    total, squares = ordered.cumsum(dim=1), ordered.square().cumsum(dim=1)
    # the level of the lowest k: k level^2 - 2 total level + squares = length
    levels = (total + (total.square() - count * (squares - length)).clamp_min(0).sqrt()) / count
    under = (levels > ordered).sum(dim=1, keepdim=True).clamp_min(1)  # none only where host is not finite
    return (levels.gather(1, under - 1) - lifted).clamp_min(0)


@torch.no_grad()
def delta_at_z0(codec: Codec, vae: Any, z: Tensor, secrets: SecretLike, strength: float = 1.0) -> Tensor:
    """The delta of each secret for latents z (B, C, h, w), fitted to their picture if the codec asks for it.

    `strength` is what delta will be multiplied by; a fit looks at the decoded picture as the detector does.
    """
    size = (z.shape[-2], z.shape[-1])
    bits = as_secrets(secrets, codec.config.length)
    if not codec.config.fitted or strength == 0:
        return codec.delta(bits, size).to(z)
    bits = bits.repeat(len(z), axis=0) if len(bits) == 1 else bits
    if size[0] < codec.config.height or size[1] < codec.config.width:
        parts = [climb(codec, vae, z[i : i + 1], bits[i : i + 1], strength) for i in range(len(z))]
        return torch.cat(parts).to(z)

    def read(delta: Tensor) -> Tensor:
        return look(codec, vae, z + strength * spread(delta, size).to(z))

    weights = fitted_weights(codec, bits, look(codec, vae, z), read)
    return codec.delta(bits, size, weights).to(z)


def look(codec: Codec, vae: Any, z: Tensor) -> Tensor:
    """Logits (B, L, 2) that the detector will find in the picture of z."""
    pixels = decode(vae, z).float().clamp(-1, 1)
    if pixels.shape[-2:] != codec.config.image_size:
        pixels = F.interpolate(pixels, codec.config.image_size, mode="bicubic", antialias=True)
    return codec.logits(encode(vae, pixels))


def climb(codec: Codec, vae: Any, z: Tensor, secrets: SecretLike, strength: float) -> Tensor:
    """A delta for latents z (B, C, h, w) that are coarser than the native ones and cannot hold their patterns.

    Up the slope of the logarithm of the chance that all bits are read: each slope is taken where the mean of those
    before it leads, as in the method of Frank and Wolfe. It needs gradients through the autoencoder. Warns if too
    few bits are read at the end.
    """
    signs = torch.from_numpy(2.0 * as_secrets(secrets, codec.config.length) - 1)
    deviation = float(codec.delta(secrets).std())
    delta = torch.zeros_like(z)

    def margins_at(delta: Tensor) -> Tensor:
        logits = look(codec, vae, z + strength * delta)
        return (logits[..., 1] - logits[..., 0]) * signs.to(logits)

    with torch.inference_mode(False), torch.enable_grad():
        z = z.clone()
        for step in range(CLIMBS):
            there = delta.clone().requires_grad_()
            (slope,) = torch.autograd.grad(F.logsigmoid(margins_at(there) / TAMED).sum(), there)
            if not slope.isfinite().all() or not slope.any():
                raise ValueError(
                    "the autoencoder has no gradient here, which latents this small need: give it float32 weights, "
                    "or mark the finished image with `diffmark embed`"
                )
            delta = rescale(delta + (rescale(slope, deviation) - delta) / (step + 1), deviation)
    read = float((margins_at(delta) > 0).float().mean())
    if read < ENOUGH:
        warnings.warn(
            f"images this small hold the mark badly: {read:.0%} of the bits are read; generate larger ones, raise "
            "the strength, or mark the finished image with `diffmark embed`",
            stacklevel=2,
        )
    return delta.detach()
