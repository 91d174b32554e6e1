"""Secrets: the L-bit payload of one image, as array of {0,1}, hex, int or bytes.

Bit 0 is the most significant one: the secret [1, 0, 0, 0] is the hex digit 8. Lengths that are not a multiple
of four (or eight) are padded with zero bits on the left in hex (or bytes), as in the integer they stand for.
"""

from __future__ import annotations

import secrets as operating_system
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
SecretLike = Any  # hex str, int, bytes, or anything numpy reads as bits; see as_secrets


def random_secrets(count: int = 1, length: int = 64) -> Bits:
    """`count` secrets from the operating system's random source, shape (count, length)."""
    if count < 1 or length < 1:
        raise ValueError(f"count and length must be at least 1, got {count} and {length}")
    return np.stack([from_int(operating_system.randbits(length), length) for _ in range(count)])


def from_int(value: int, length: int) -> Bits:
    """The `length` bits of an integer, most significant first, shape (length,)."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"a secret's number must be an int, got {type(value).__name__}")
    value = int(value)
    if not 0 <= value < 1 << length:
        raise ValueError(f"a number of {value.bit_length()} bits does not fit in a secret of {length}")
    padded = value.to_bytes(_bytes(length), "big")
    return np.unpackbits(np.frombuffer(padded, np.uint8))[-length:]


def to_int(secret: SecretLike) -> int:
    """The integer that the bits stand for."""
    bits = _bits(secret)
    pad = -len(bits) % 8
    return int.from_bytes(np.packbits(np.pad(bits, (pad, 0))).tobytes(), "big")


def from_hex(text: str, length: int) -> Bits:
    """Bits of a hex string with exactly ceil(length / 4) digits. What is wrong is said without showing it."""
    digits = -(-length // 4)
    if len(text) != digits:
        raise ValueError(f"a secret of {length} bits has {digits} hex digits, got {len(text)} characters")
    wrong = [place for place, letter in enumerate(text, 1) if letter not in "0123456789abcdefABCDEF"]
    if wrong:
        raise ValueError(f"a secret is written in hex digits 0-9 a-f: character {wrong[0]} is none")
    return from_int(int(text, 16), length)


def to_hex(secret: SecretLike) -> str:
    """Hex digits of the bits, ceil(L / 4) of them."""
    bits = _bits(secret)
    return f"{to_int(bits):0{-(-len(bits) // 4)}x}"


def from_bytes(data: bytes, length: int) -> Bits:
    """Bits of exactly ceil(length / 8) bytes, big-endian."""
    if len(data) != _bytes(length):
        raise ValueError(f"a secret of {length} bits has {_bytes(length)} bytes, got {len(data)}")
    return from_int(int.from_bytes(data, "big"), length)


def to_bytes(secret: SecretLike) -> bytes:
    """Big-endian bytes of the bits, ceil(L / 8) of them."""
    bits = _bits(secret)
    return to_int(bits).to_bytes(_bytes(len(bits)), "big")


def as_secrets(value: SecretLike, length: int) -> Bits:
    """Anything that names one secret or several, as bits of shape (B, length).

    Takes hex, int, bytes, bits of shape (length,) or (B, length) (list, numpy, torch), or a list of these.
    """
    single = _one(value, length)
    if single is not None:
        return single[None]
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu().double().numpy()
    if isinstance(value, np.ndarray) and value.ndim == 2 and len(value):
        return np.stack([_bits(row, length) for row in value])
    if isinstance(value, Iterable) and not isinstance(value, np.ndarray):
        items = list(value)
        if items and not _looks_like_bits(items):
            return np.concatenate([as_secrets(item, length) for item in items])
        value = items
    return _bits(value, length)[None]


def _one(value: SecretLike, length: int) -> Bits | None:
    """A secret written as hex, int or bytes; None if it is none of these."""
    if isinstance(value, str):
        return from_hex(value, length)
    if isinstance(value, (bytes, bytearray)):
        return from_bytes(bytes(value), length)
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return from_int(int(value), length)
    return None


def _looks_like_bits(items: list[Any]) -> bool:
    return all(isinstance(item, (int, float, np.number, np.bool_)) and item in (0, 1) for item in items)


def _bits(value: SecretLike, length: int | None = None) -> Bits:
    """A vector of {0,1} as uint8, checked."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    bits = np.asarray(value)
    if bits.ndim != 1 or bits.size == 0 or (length is not None and bits.size != length):
        wanted = f"({length},)" if length is not None else "(L,)"
        raise ValueError(f"a secret's bits have shape {wanted}, got {bits.shape}")
    if not np.isin(bits, (0, 1)).all():
        raise ValueError("a secret's bits are 0 or 1")
    return bits.astype(np.uint8)


def _bytes(length: int) -> int:
    return -(-length // 8)
