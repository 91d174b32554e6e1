"""What is searched for: 64 decoded bits and an integer weight for each. Hard search is the case of equal weights.

The cost of a key is the sum of the weights of the bits that disagree. Answers are ordered by (cost, key), key as
an unsigned number, on every path, so that ties never depend on how the answer was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diffmark import secret
from diffmark.statistics import WEIGHT_BITS, match_tail, soft_distribution, soft_weights, to_margins

LENGTH = 64  # bits of a key
Keys = NDArray[np.uint64]
Hits = tuple[NDArray[np.int64], Keys]  # costs and keys of the best, ordered


@dataclass(frozen=True, eq=False)
class Query:
    """`bits` as the integer they stand for; `weights` (64,) in 0 ... 15, bit 0 is the most significant."""

    bits: int
    weights: NDArray[np.int64]

    @cached_property
    def hard(self) -> bool:
        """True if all bits weigh one: cost is then the Hamming distance."""
        return bool((self.weights == 1).all())

    @cached_property
    def planes(self) -> Keys:
        """Mask b holds the bits whose weight has bit b set: cost = sum_b 2^b popcount(difference & planes[b])."""
        planes = [mask_of((self.weights >> b) & 1) for b in range(1 if self.hard else WEIGHT_BITS)]
        return np.array(planes, dtype=np.uint64)

    @cached_property
    def distribution(self) -> NDArray[np.float64]:
        """P(cost <= c) of a random key, c = 0 ... sum of weights."""
        if self.hard:
            return np.array([match_tail(LENGTH - d, LENGTH) for d in range(LENGTH + 1)])
        return soft_distribution(self.weights)

    def costs(self, keys: Keys) -> NDArray[np.uint16]:
        """Cost of each key, by numpy; small numbers, because this is bound by memory."""
        difference = keys ^ np.uint64(self.bits)
        if self.hard:
            return popcounts(difference).astype(np.uint16)
        total = np.zeros(keys.shape, dtype=np.uint16)
        for b, plane in enumerate(self.planes):
            total += popcounts(difference & plane).astype(np.uint16) << np.uint16(b)
        return total


def from_bits(value: Any) -> Query:
    """A hard query from an int, a hex string of 16 digits, bytes, or 64 bits."""
    return Query(secret.to_int(secret.as_secrets(value, LENGTH)[0]), np.ones(LENGTH, dtype=np.int64))


def from_margins(margins: ArrayLike) -> Query:
    """A soft query from logit margins, shape (64,): the sign is the bit, the size its weight."""
    margins = np.asarray(margins, dtype=np.float64)
    if margins.shape != (LENGTH,):
        raise ValueError(
            f"the registry serves {LENGTH}-bit keys: margins have shape (64,), got {margins.shape}"
        )
    return Query(secret.to_int(margins > 0), soft_weights(margins))


def margins_of(detection: Any) -> NDArray[np.float64]:
    """Logit margins (64,) of a Detection (anything with `.logits`) or of logits of shape (64, 2) or (1, 64, 2)."""
    logits = getattr(detection, "logits", detection)
    if hasattr(logits, "detach"):  # a torch tensor, without importing torch
        logits = logits.detach().cpu().numpy()
    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim == 3 and logits.shape[0] == 1:
        logits = logits[0]
    if logits.shape != (LENGTH, 2):
        raise ValueError(
            f"the registry serves {LENGTH}-bit keys: logits of one image have shape (64, 2), got {logits.shape}"
            + ("; for several images use identify_many or identify_together" if logits.ndim == 3 else "")
        )
    return to_margins(logits)


def mask_of(flags: ArrayLike) -> int:
    """The 64-bit number whose bits are `flags` (64,), the first the most significant."""
    return int.from_bytes(np.packbits(np.asarray(flags).astype(bool)).tobytes(), "big")


def popcounts(words: Keys) -> NDArray[np.uint8]:
    """Number of set bits of each word."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 8)  # numpy 1
    return np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.uint8)


def ordered(costs: NDArray[Any], keys: Keys, top: int) -> Hits:
    """The best `top` of these, ordered by (cost, key)."""
    order = np.lexsort((keys, costs))[:top]
    return costs[order].astype(np.int64), keys[order]
