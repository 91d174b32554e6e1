"""A delta fitted to its picture: the same strength, shared among the bits so that most of them are read well.

The picture's own latents are the noise that a mark is read in, and where the mark is added to z0 that noise is
known. A bit that the picture says already needs nothing, one that it contradicts needs more, and one that it
contradicts too loudly is left to error correction. A bit's margin is nearly a straight line in its weight,
m_b = host_b + gain * a_b, so weights follow from looking at the picture as a detector would; another look takes in
what is not straight. The detector is the same as for any other delta.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diffmark.codec import Codec
from diffmark.secret import SecretLike, as_secrets

LOOKS = 2  # at weights that were solved for
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
