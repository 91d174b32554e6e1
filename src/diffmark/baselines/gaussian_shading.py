"""Gaussian Shading (Yang et al., 2024): 256 bits in the signs of z_T, read by inversion.

As in its paper and code: the message is repeated over the latents in copies of one layout, the copies are encrypted
with ChaCha20, and a bit of the stream says in which half of the Gaussian a latent is drawn, so that z_T of a random
message is Gaussian; reading takes signs, decrypts and lets the copies of a bit vote. Deviations: latents of 32 x 32
hold 16 copies of 256 bits, not 64; one nonce for all pictures, where the authors' code draws one a picture, kept
for the reader.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from diffmark.baselines.inversion import InversionMethod
from diffmark.mark.generation import ImageSpec
from diffmark.secret import Bits

LAYOUT = 8  # cells each way that one copy of the message fills, in every channel


class GaussianShading(InversionMethod):
    """A message an image; the key is the stream cipher's."""

    name = "gaussian-shading"

    def __init__(self, pipe: Any, *arguments: Any, key_seed: int = 0, **options: Any) -> None:
        super().__init__(pipe, *arguments, **options)
        if self.side % LAYOUT:
            raise ValueError(
                f"{self.name} needs latents whose side is a multiple of {LAYOUT}, got {self.side}"
            )
        self.bits = self.channels * LAYOUT**2
        key = np.random.default_rng([key_seed, 20]).bytes(48)  # 32 bytes of key, 16 of counter and nonce
        zeros = bytes(self.channels * self.side**2 // 8)
        stream = Cipher(ChaCha20(key[:32], key[32:]), mode=None).encryptor().update(zeros)
        self.stream = np.unpackbits(np.frombuffer(stream, np.uint8)).reshape(self.shape)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the latents, (C, h, w)."""
        return self.channels, self.side, self.side

    def repeated(self, secret: Bits) -> NDArray[np.uint8]:
        """The copies of a message, (C, h, w)."""
        copies = self.side // LAYOUT
        message = np.asarray(secret, np.uint8).reshape(self.channels, LAYOUT, LAYOUT)
        return np.tile(message, (1, copies, copies))

    def imprint(self, latents: Tensor, spec: ImageSpec) -> Tensor:
        """The Gaussian keeps its size and takes the sign that its bit says, which is to draw from that half."""
        halves = torch.from_numpy(2.0 * (self.repeated(spec.secret) ^ self.stream) - 1)
        return latents.abs() * halves.to(latents)

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Margins are the votes of a bit's copies; the score is the number of matching bits."""
        votes = 2.0 * ((state > 0).numpy() ^ self.stream.astype(bool)) - 1  # (B, C, h, w)
        copies = votes.reshape(len(state), self.channels, self.side // LAYOUT, LAYOUT, -1, LAYOUT)
        margins = copies.sum(axis=(2, 4)).reshape(len(state), self.bits)
        return margins, ((margins > 0) == secrets).sum(axis=1).astype(np.float64)
