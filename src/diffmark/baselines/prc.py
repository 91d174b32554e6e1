"""PRC (Gunn, Zhao and Song, 2025): the signs of z_T are a word of a pseudorandom error-correcting code.

As in its paper and code: the key is a sparse parity check (each of three positions) and a generator that fits it, a
one-time pad and test bits; a word encodes test bits, random bits and the message, with a little noise, so that z_T
cannot be told from Gaussian without the key; after inversion the posterior of each sign goes into the paper's
test, a log-likelihood of the parity checks with a bound on its false positives, and into belief propagation with
ordered elimination for the message. Deviations: latents of 32 x 32 give words of 4,096 bits, not 16,384, and the
message has 64 bits, not 512; a message whose test bits are wrong counts as not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import erf
from torch import Tensor

from diffmark.baselines.inversion import InversionMethod
from diffmark.mark.generation import ImageSpec
from diffmark.secret import Bits

SPARSITY = 3  # positions that a parity check joins
RATE = 1e-5  # false positives that the test bits allow
VARIANCE = 1.5  # of what inversion adds to a latent, in the posteriors
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CodeKey:
    """A pseudorandom code of n-bit words that carry k bits."""

    generator: NDArray[np.uint8]  # (n, k)
    checks: NDArray[np.int64]  # (r, 3): the positions of each check sum to zero
    pad: NDArray[np.uint8]  # (n,)
    test: NDArray[np.uint8]
    randomness: int  # random bits in a word
    noise: float  # share of bits that are flipped

    @classmethod
    def drawn(cls, length: int, message: int, rng: np.random.Generator) -> CodeKey:
        """A random key: rows of the generator follow from two earlier ones, which is the check that joins them."""
        tests, security = math.ceil(math.log2(1 / RATE)), int(math.log2(math.comb(length, SPARSITY)))
        carried = message + security + tests
        free = carried + security  # rows that are drawn; each of the others makes one check
        generator = rng.integers(0, 2, (length, carried)).astype(np.uint8)
        checks = np.zeros((length - free, SPARSITY), np.int64)
        for row in range(free, length):
            joined = rng.choice(row, SPARSITY - 1, replace=False)
            generator[row] = np.bitwise_xor.reduce(generator[joined])
            checks[row - free] = [*joined, row]
        order = rng.permutation(length)  # position i of a word is row order[i]
        pad, test = (rng.integers(0, 2, size).astype(np.uint8) for size in (length, tests))
        noise = 1 - 2.0 ** (-1 / security)
        return cls(generator[order], np.argsort(order)[checks], pad, test, security, noise)

    def word(self, message: Bits, rng: np.random.Generator) -> NDArray[np.uint8]:
        """A fresh word with this message, (n,)."""
        payload = np.concatenate([self.test, rng.integers(0, 2, self.randomness), message]).astype(np.uint8)
        flips = rng.random(len(self.pad)) < self.noise
        return self.generator @ payload % 2 ^ self.pad ^ flips

    def expected(self, z: Floats) -> Floats:
        """Of each bit of the unpadded word, +1 for 0 and -1 for 1, given latents (n,)."""
        posteriors = erf(z / math.sqrt(2 * VARIANCE * (1 + VARIANCE)))
        return (1 - 2 * self.noise) * (1 - 2.0 * self.pad) * posteriors

    def likelihood(self, expected: Floats) -> tuple[float, float, float]:
        """Log-likelihood of the parity checks, its middle without a mark, and the spread in the paper's bound."""
        joint = expected[self.checks].prod(axis=1)
        even, odd = np.log((1 + joint) / 2), np.log((1 - joint) / 2)
        spread = 0.5 * float(np.sum(even**2 + odd**2 - 0.5 * (even + odd) ** 2))
        return float(even.sum()), float(0.5 * (even + odd).sum()), spread

    def evidence(self, expected: Floats) -> float:
        """Root of minus the log of the bound on P(an unmarked image does as well); below zero it says nothing."""
        found, middle, spread = self.likelihood(expected)
        return (found - middle) / math.sqrt(2 * spread)

    def message(self, expected: Floats) -> Bits | None:
        """What a word says; None if its test bits are not the key's."""
        llr = self._propagated(2 * np.arctanh(np.clip(expected, -1 + 1e-12, 1 - 1e-12)))
        solved = solve(self.generator, (llr < 0).astype(np.uint8), np.argsort(-np.abs(llr), kind="stable"))
        if solved is None or not np.array_equal(solved[: len(self.test)], self.test):
            return None
        return solved[len(self.test) + self.randomness :]

    def _propagated(self, prior: Floats) -> Floats:
        """Belief propagation (sum-product) until all checks hold, for as many rounds as the authors take."""
        total, inwards = prior.copy(), np.zeros(self.checks.shape)
        for _ in range(int(math.log(len(prior)) / math.log(SPARSITY))):
            tanh = np.tanh((total[self.checks] - inwards) / 2)
            others = np.stack([np.delete(tanh, i, axis=1).prod(axis=1) for i in range(SPARSITY)], axis=1)
            inwards = 2 * np.arctanh(np.clip(others, -1 + 1e-12, 1 - 1e-12))
            total = prior + np.bincount(self.checks.ravel(), inwards.ravel(), len(prior))
            if not np.bitwise_xor.reduce(total[self.checks] < 0, axis=1).any():
                break
        return total


def solve(rows: NDArray[np.uint8], bits: NDArray[np.uint8], order: NDArray[np.int64]) -> Bits | None:
    """x with rows @ x = bits (mod 2) for the first independent rows in this order; None if they are too few."""
    count = rows.shape[1]
    packed = (int("".join(map(str, [*rows[i], bits[i]])), 2) for i in order)
    basis: dict[int, int] = {}  # by the leading one; the last bit is the right-hand side
    for value in packed:
        while value > 1 and value.bit_length() in basis:
            value ^= basis[value.bit_length()]
        if value > 1:
            basis[value.bit_length()] = value
        if len(basis) == count:
            break
    if len(basis) < count:
        return None
    solution = 0
    for leading in sorted(basis):  # from the last unknown to the first
        value = basis[leading]
        right = (value & 1) ^ ((value & ~1 & ~(1 << leading - 1) & solution).bit_count() & 1)
        solution |= right << leading - 1
    return np.array([solution >> count - i & 1 for i in range(count)], np.uint8)


class PseudorandomCode(InversionMethod):
    """A message an image under one key."""

    name, bits = "prc", 64

    def __init__(self, pipe: Any, *arguments: Any, key_seed: int = 0, **options: Any) -> None:
        super().__init__(pipe, *arguments, **options)
        length = self.channels * self.side**2
        self.key = CodeKey.drawn(length, self.bits, np.random.default_rng([key_seed, 64]))

    def imprint(self, latents: Tensor, spec: ImageSpec) -> Tensor:
        """The Gaussian keeps its size and takes the sign of a fresh word."""
        word = self.key.word(spec.secret, np.random.default_rng([spec.seed, 65]))
        return latents.abs() * torch.from_numpy(1.0 - 2 * word).view(latents.shape[1:]).to(latents)

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Margins are +-1, and 0 where no message is read; the score is the test's, whoever's the message is."""
        expected = [self.key.expected(z) for z in state.flatten(1).double().numpy()]
        messages = [self.key.message(one) for one in expected]
        unread = np.zeros(self.bits)
        margins = [unread if message is None else 2.0 * message - 1 for message in messages]
        return np.stack(margins), np.array([self.key.evidence(one) for one in expected])

    def p_values(
        self, margins: NDArray[np.float64], scores: NDArray[np.float64], secrets: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        """The paper's bound, which is far from tight."""
        return np.exp(-(np.maximum(scores, 0) ** 2))
