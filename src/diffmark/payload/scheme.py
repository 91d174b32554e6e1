"""Payload mode: (account, nonce) inside the secret itself, behind a keyed permutation and a code.

    account | nonce | check zeros  --FF1-->  k bits  --BCH + parity-->  L bits  --XOR mask-->  secret

Permutation and mask come from the operator's key. The permutation covers the whole block, so every nonce gives an
account fresh-looking bits and only the key links them. The mask moves the code to a place of the operator's own: to
anyone else, another operator included, a secret is a random word and not a codeword. The check bits verify: under a
wrong key, or on an unmarked image, they come out zero by chance only. The code is BCH; hard decisions are decoded
algebraically, soft ones by ordered statistics (Fossorier and Lin, 1995).
"""

from __future__ import annotations

import functools
import itertools
import math
import secrets as operating_system
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import ArrayLike, NDArray

from diffmark.payload.bch import BCH, codes
from diffmark.payload.permutation import FF1
from diffmark.private import check_private
from diffmark.secret import Bits, from_bytes, from_int, to_int

WIDTHS = (20, 13, 12)  # account, nonce and check in 64 bits: three errors are always corrected
FLIPS = 2  # ordered statistics: how many of the most reliable positions may be wrong


@dataclass(frozen=True)
class Payload:
    """What was read from a secret, and how sure that is."""

    verified: bool
    account: int | None  # None unless verified
    nonce: int | None
    errors: int | None  # bits that the code corrected; None if it could not decode
    p_value: float  # chance that random bits verify with this many errors or fewer


@dataclass(frozen=True)
class Code:
    """A systematic [L, k] code: shortened BCH with one overall parity bit, correcting t errors."""

    length: int
    dimension: int

    def __post_init__(self) -> None:
        if self.dimension not in dict(rates(self.length)):
            known = ", ".join(f"{k} (t={t})" for k, t in rates(self.length))
            raise ValueError(f"no code of {self.dimension} bits in {self.length}; there are {known}")

    @property
    def correctable(self) -> int:
        """t: every pattern of up to t errors is corrected."""
        return _bch(self.length, self.dimension).t

    def encode(self, message: Bits) -> Bits:
        """(k,) -> (L,)"""
        return (message.astype(np.int64) @ self._generator % 2).astype(np.uint8)

    def decode_hard(self, bits: Bits) -> Bits | None:
        """The codeword within t errors of `bits`, (L,) -> (L,); None if there is none."""
        found = _bch(self.length, self.dimension).correct(bits[:-1])  # the parity bit stands outside
        return None if found is None else self.encode(found[: self.dimension])

    def decode_soft(self, margins: NDArray[np.float64]) -> Bits:
        """The most likely codeword found near the most reliable bits, (L,) margins -> (L,)."""
        bits, trust = (margins > 0).astype(np.int64), np.abs(margins)
        basis, pivots = _reduce(self._generator, np.argsort(-trust, kind="stable"))
        codewords = (bits[pivots] ^ _flips(self.dimension)) @ basis % 2  # (patterns, L)
        cost = (codewords ^ bits) @ trust
        return codewords[int(np.argmin(cost))].astype(np.uint8)

    @property
    def _generator(self) -> NDArray[np.int64]:
        return _generator(self.length, self.dimension)


class PayloadScheme:
    """Writes and reads payloads under the operator's key.

    The three widths add up to the dimension of a code (`rates` lists them): fewer bits bear more errors.
    """

    def __init__(
        self,
        key: bytes,
        length: int = 64,
        account_bits: int = WIDTHS[0],
        nonce_bits: int = WIDTHS[1],
        check_bits: int = WIDTHS[2],
    ) -> None:
        if min(account_bits, check_bits) < 1 or nonce_bits < 0:
            raise ValueError(
                f"account and check need at least 1 bit, nonce 0, got {account_bits}, {check_bits} and {nonce_bits}"
            )
        self.account_bits, self.nonce_bits, self.check_bits = account_bits, nonce_bits, check_bits
        self.code = Code(length, account_bits + nonce_bits + check_bits)
        self._permutation = FF1(key, self.code.dimension, tweak=b"diffmark-payload-1")
        derive = HKDF(SHA256(), -(-length // 8), salt=None, info=b"diffmark-payload-mask-1")
        self._mask = from_bytes(derive.derive(key), 8 * -(-length // 8))[:length]

    @staticmethod
    def new_key() -> bytes:
        """A key from the operating system's random source."""
        return operating_system.token_bytes(32)

    @classmethod
    def from_file(cls, path: str | Path, length: int = 64, widths: Sequence[int] = WIDTHS) -> PayloadScheme:
        """The scheme under the hex key in a file; `widths` are the bits of account, nonce and check."""
        path = Path(path)
        check_private(path, "payload keys")
        try:
            key = bytes.fromhex(path.read_text("utf-8").strip())
        except ValueError:  # also of bytes that are no text
            key = b""
        if len(key) != 32:
            raise ValueError(
                f"{path} holds no payload key: 64 hex digits, as diffmark secret key writes them"
            )
        if len(widths) != 3:
            raise ValueError(f"a payload has three widths: account, nonce and check, got {list(widths)}")
        return cls(key, length, *widths)

    def encode(self, account: int, nonce: int | None = None) -> Bits:
        """The secret for one image of `account`, shape (L,); the nonce is random unless given."""
        if nonce is None:
            nonce = operating_system.randbits(self.nonce_bits) if self.nonce_bits else 0
        for name, value, width in (
            ("account", account, self.account_bits),
            ("nonce", nonce, self.nonce_bits),
        ):
            if not 0 <= value < 1 << width:
                raise ValueError(f"{name} {value} does not fit in {width} bits")
        block = (account << self.nonce_bits | nonce) << self.check_bits
        return self.code.encode(from_int(self._permutation.encrypt(block), self.code.dimension)) ^ self._mask

    def decode(self, margins: ArrayLike) -> Payload:
        """Read a payload from logit margins, (L,); hard bits serve as margins of equal size.

        Soft decoding is tried only where hard decoding does not verify, so it is never worse, and at most two
        candidates are held against the check.
        """
        values = np.asarray(margins, dtype=np.float64)
        if values.shape != (self.code.length,):
            raise ValueError(f"margins have shape ({self.code.length},), got {values.shape}")
        values = np.where(self._mask, -values, values)
        bits = (values > 0).astype(np.uint8)
        codeword = self.code.decode_hard(bits)
        payload = self._verify(codeword, bits)
        if not payload.verified:
            soft = self._verify(self.code.decode_soft(values), bits)
            payload = soft if soft.verified or payload.errors is None else payload
        return payload

    def false_rate(self, errors: int) -> float:
        """Bound on the chance that random bits lie within `errors` of a secret that verifies."""
        length, free = self.code.length, self.code.dimension - self.check_bits
        near = sum(math.comb(length, count) for count in range(errors + 1))
        return min(1.0, near * 2.0 ** (free - length))

    def _verify(self, codeword: Bits | None, bits: Bits) -> Payload:
        if codeword is None:
            return Payload(False, None, None, None, 1.0)
        errors = int((codeword != bits).sum())
        block = self._permutation.decrypt(to_int(codeword[: self.code.dimension]))
        head, check = divmod(block, 1 << self.check_bits)
        if check:
            return Payload(False, None, None, errors, 1.0)
        account, nonce = divmod(head, 1 << self.nonce_bits)
        return Payload(True, account, nonce, errors, self.false_rate(errors))


def rates(length: int) -> tuple[tuple[int, int], ...]:
    """(k, t) of every code of this length that leaves enough bits to permute safely, longest payload first."""
    if not 32 <= length <= 256:
        raise ValueError(f"payloads need secrets of 32 to 256 bits, got {length}")
    return tuple((code.dimension, code.t) for code in codes(length - 1))


def _bch(length: int, dimension: int) -> BCH:
    return next(code for code in codes(length - 1) if code.dimension == dimension)


@functools.cache
def _generator(length: int, dimension: int) -> NDArray[np.int64]:
    """Systematic generator matrix of the shortened, extended code, (k, L)."""
    matrix = _bch(length, dimension).matrix
    return np.concatenate([matrix, matrix.sum(axis=1, keepdims=True) % 2], axis=1)


def _reduce(
    generator: NDArray[np.int64], order: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Row-reduce so that the first independent columns in `order` form the identity; these are the pivots."""
    matrix = generator.copy()
    pivots: list[np.intp] = []
    for column in order:
        row = len(pivots)
        below = np.flatnonzero(matrix[row:, column])
        if below.size == 0:
            continue
        swap = row + below[0]
        matrix[[row, swap]] = matrix[[swap, row]]
        others = np.flatnonzero(matrix[:, column])
        matrix[others[others != row]] ^= matrix[row]
        pivots.append(column)
        if len(pivots) == len(matrix):
            break
    return matrix, np.array(pivots)


@functools.cache
def _flips(dimension: int) -> NDArray[np.int64]:
    """Every pattern of up to FLIPS flipped positions, (patterns, k)."""
    chosen = [c for count in range(FLIPS + 1) for c in itertools.combinations(range(dimension), count)]
    patterns = np.zeros((len(chosen), dimension), np.int64)
    for row, positions in enumerate(chosen):
        patterns[row, list(positions)] = 1
    return patterns
