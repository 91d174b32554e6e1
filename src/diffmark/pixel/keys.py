"""The operator key of the pixel layer, and everything that is derived from it.

Every pattern of the mark comes from one symmetric key: HKDF-SHA256 gives a subkey for each purpose, and SHA-256 in
counter mode expands it to as many numbers as are needed. Integers only, so that every platform, and a reader in a
browser, derives the same patterns.
"""

from __future__ import annotations

import hashlib
import string
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
SALT = b"diffmark pixel layer 1"


class OperatorKey:
    """A 256-bit symmetric key. Whoever has it can write marks, read them, and aim at them."""

    __slots__ = ("_key", "id")

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, (bytes, bytearray)):
            raise TypeError(f"an operator key is bytes, got {type(key).__name__}")
        if len(key) != KEY_BYTES:
            raise ValueError(f"an operator key has {KEY_BYTES} bytes, got {len(key)}")
        self._key = bytes(key)
        self.id = self.subkey("id")[:4].hex()  # public: names the key without giving it away

    @classmethod
    def from_hex(cls, text: str) -> OperatorKey:
        """From 64 hex digits."""
        try:
            return cls(bytes.fromhex(text.strip()))
        except ValueError as error:
            raise ValueError(f"an operator key is {2 * KEY_BYTES} hex digits") from error

    @classmethod
    def from_file(cls, path: str | Path) -> OperatorKey:
        """From a text file that holds the hex digits; a file that others can read is refused."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such key file")
        if path.stat().st_mode & 0o077:
            raise PermissionError(f"{path}: others can read this key; chmod 600 it first")
        try:
            return cls.from_hex(path.read_text())
        except (ValueError, UnicodeDecodeError):
            raise ValueError(f"{path}: an operator key is {2 * KEY_BYTES} hex digits") from None

    def subkey(self, purpose: str) -> bytes:
        """32 bytes for one purpose: HKDF(key, purpose)."""
        return HKDF(SHA256(), KEY_BYTES, SALT, purpose.encode()).derive(self._key)

    def numbers(self, purpose: str, count: int) -> NDArray[np.uint32]:
        """`count` uniform 32-bit numbers: SHA-256(subkey, counter), big-endian."""
        subkey = self.subkey(purpose)
        blocks = -(-count // 8)
        data = b"".join(hashlib.sha256(subkey + block.to_bytes(4, "big")).digest() for block in range(blocks))
        return np.frombuffer(data, ">u4")[:count].astype(np.uint32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OperatorKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"OperatorKey(id={self.id!r})"


PUBLIC_KEY = OperatorKey(hashlib.sha256(b"diffmark public key for trying out").digest())


def as_key(value: OperatorKey | bytes | str | Path | None) -> OperatorKey:
    """A key, its bytes, its hex digits, or the path of its file; None is the public key."""
    if value is None:
        return PUBLIC_KEY
    if isinstance(value, OperatorKey):
        return value
    if isinstance(value, (bytes, bytearray)):
        return OperatorKey(value)
    if isinstance(value, str) and len(value) == 2 * KEY_BYTES and not Path(value).exists():
        return OperatorKey.from_hex(value)
    if isinstance(value, str) and is_cut_hex(value):  # perhaps most of a key: it is not shown
        raise ValueError(f"neither a file nor a key, which is {2 * KEY_BYTES} hex digits; got {len(value)}")
    return OperatorKey.from_file(value)


def is_cut_hex(text: str) -> bool:
    """Whether this is a key with digits too few or too many rather than the name of a file."""
    return len(text) >= KEY_BYTES and set(text) <= set(string.hexdigits) and not Path(text).exists()
