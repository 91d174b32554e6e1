"""FF1, the format-preserving encryption of NIST SP 800-38G, on AES from the `cryptography` package.

It permutes the numbers below radix^digits under a key; payloads use it on blocks of k bits.
"""

from __future__ import annotations

import math

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ROUNDS = 10
MIN_DOMAIN = 1_000_000  # the standard's lower limit for radix^digits


class FF1:
    """Permutation of 0 ... radix^digits - 1 under an AES key of 16, 24 or 32 bytes."""

    def __init__(self, key: bytes, digits: int, radix: int = 2, tweak: bytes = b"") -> None:
        if len(key) not in (16, 24, 32):
            raise ValueError(f"an AES key has 16, 24 or 32 bytes, got {len(key)}")
        if radix**digits < MIN_DOMAIN:
            raise ValueError(f"{radix}^{digits} values are too few to permute safely (NIST SP 800-38G: 10^6)")
        self._aes = algorithms.AES(key)
        self._radix, self._digits, self._tweak = radix, digits, tweak
        self._left = digits // 2  # u
        self._right = digits - self._left  # v
        self._half_bytes = math.ceil(math.ceil(self._right * math.log2(radix)) / 8)  # b
        self._head = (  # P
            bytes([1, 2, 1])
            + radix.to_bytes(3, "big")
            + bytes([ROUNDS, self._left % 256])
            + digits.to_bytes(4, "big")
            + len(tweak).to_bytes(4, "big")
        )

    def encrypt(self, value: int) -> int:
        a, b = divmod(self._checked(value), self._radix**self._right)
        for index in range(ROUNDS):
            a, b = b, (a + self._round(index, b)) % self._modulus(index)
        return a * self._radix**self._right + b

    def decrypt(self, value: int) -> int:
        a, b = divmod(self._checked(value), self._radix**self._right)
        for index in reversed(range(ROUNDS)):
            a, b = (b - self._round(index, a)) % self._modulus(index), a
        return a * self._radix**self._right + b

    def _checked(self, value: int) -> int:
        if not 0 <= value < self._radix**self._digits:
            raise ValueError(
                f"{value} lies outside the {self._radix}^{self._digits} values of this permutation"
            )
        return value

    def _modulus(self, index: int) -> int:
        return self._radix ** (self._left if index % 2 == 0 else self._right)

    def _round(self, index: int, half: int) -> int:
        pad = bytes(-(len(self._tweak) + self._half_bytes + 1) % 16)
        block = self._tweak + pad + bytes([index]) + half.to_bytes(self._half_bytes, "big")  # Q
        digest = self._mac(self._head + block)  # R
        wanted = 4 * math.ceil(self._half_bytes / 4) + 4  # d
        stream = digest
        for counter in range(1, math.ceil(wanted / 16)):
            mask = int.from_bytes(digest, "big") ^ counter
            stream += self._mac(mask.to_bytes(16, "big"))
        return int.from_bytes(stream[:wanted], "big")

    def _mac(self, data: bytes) -> bytes:
        """CBC-MAC: the last block of AES-CBC with a zero start."""
        encryptor = Cipher(self._aes, modes.CBC(bytes(16))).encryptor()
        return encryptor.update(data)[-16:]
