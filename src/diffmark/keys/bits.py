"""A keyed permutation and mask of a secret's bits: s -> s[order] xor mask, by HKDF from the operator key.

The networks of a trained codec have no key: whoever has them reads and writes. Under an operator key they carry
another word than the secret, so that a reader with another key, or with none, finds bits that agree with the secret
by chance. It does not hide that there is a mark, and does not keep anybody from removing it or from copying it: for
that the networks themselves have to be the operator's own, trained from a seed of theirs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.secret import Bits

PURPOSE = "latent codec"
Logits = NDArray[np.floating]


class KeyedBits:
    """Permutation and mask of `length` bits under a key; under the public key they change nothing."""

    def __init__(self, key: OperatorKey, length: int) -> None:
        self.key_id = key.id
        if key == PUBLIC_KEY:
            self.order, self.mask = np.arange(length), np.zeros(length, np.uint8)
            return
        self.order = np.argsort(key.numbers(f"{PURPOSE} permutation", length), kind="stable")
        self.mask = (key.numbers(f"{PURPOSE} mask", length) & 1).astype(np.uint8)

    def write(self, secrets: Bits) -> Bits:
        """What the codec is to carry for these secrets, (..., L)."""
        return secrets[..., self.order] ^ self.mask

    def read(self, logits: Logits) -> Logits:
        """Logits of the secret's bits from those of the carried ones, (..., L, 2)."""
        found = np.empty_like(logits)
        found[..., self.order, :] = self._masked(logits)
        return found

    def carried(self, logits: Logits) -> Logits:
        """What `read` was given."""
        return self._masked(logits[..., self.order, :])

    def _masked(self, logits: Logits) -> Logits:
        return np.where(self.mask[:, None], logits[..., ::-1], logits)
