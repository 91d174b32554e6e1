"""RingID (Ci et al., 2024): eleven rings of discrete value, so 2^11 keys, and a second channel of noise.

As in its paper and code: rings of radii 3 to 13 in the last channel, each plus or minus one standard deviation of a
noise spectrum, moved to the middle of the latents (`time_shift`), so that a rotation does not turn the corners that
would hold them out of the picture; inside the same rings the first channel's spectrum is a noise of the key; a key
is as far as the nearer of its two channels in L1 distance, and the nearest of 2^11 keys is read. Deviations:
radii are kept on smaller latents, where they fill nearly the whole spectrum; rings are by rounded distance, which
the code finds by rotating a picture of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffmark.baselines.inversion import InversionMethod, from_spectrum, radii, spectrum
from diffmark.mark.generation import ImageSpec
from diffmark.secret import Bits

FIRST, LAST = 3, 13


class RingID(InversionMethod):
    """A key an image, identified by the rings."""

    name, bits = "ring-id", LAST - FIRST + 1

    def __init__(self, pipe: Any, *arguments: Any, noise_seed: int = 0, **options: Any) -> None:
        super().__init__(pipe, *arguments, **options)
        ring, place = radii(self.side).round(), torch.arange(self.side) - self.side // 2
        self.on_ring = (ring >= FIRST) & (ring <= LAST)
        self.ring = (ring[self.on_ring] - FIRST).long()  # which one, of each frequency on any, (n,)
        self.shift = 1.0 - 2.0 * (
            (place[:, None] + place) % 2
        )  # half the side, in space, is this in the spectrum
        self.value = float(self.side)  # standard deviation of the spectrum of unit noise
        self.noise_seed = noise_seed

    def rings(self, secret: Bits) -> Tensor:
        """The key's values in the last channel at the frequencies on rings, (n,)."""
        signs = 2.0 * torch.as_tensor(np.asarray(secret), dtype=torch.float32) - 1
        return self.value * signs[self.ring] * self.shift[self.on_ring]

    def noise(self, secret: Bits) -> Tensor:
        """The key's values in the first channel, complex, (n,); real latents keep these whole."""
        return self.noises[self.number(secret)]

    @cached_property
    def noises(self) -> Tensor:
        """Of every key, (2^11, n)."""
        drawn = torch.Generator().manual_seed(self.noise_seed)
        spectra = [
            spectrum(torch.randn(self.side, self.side, generator=drawn))[self.on_ring]
            for _ in range(2**self.bits)
        ]
        return torch.stack(spectra)

    @cached_property
    def keys(self) -> NDArray[np.uint8]:
        """Every key's bits, (2^11, 11)."""
        return (np.arange(2**self.bits)[:, None] >> np.arange(self.bits) & 1).astype(np.uint8)

    def number(self, secret: Bits) -> int:
        """Of a key among all."""
        return int(np.asarray(secret, dtype=np.int64) @ (1 << np.arange(self.bits)))

    def imprint(self, latents: Tensor, spec: ImageSpec) -> Tensor:
        marked, latents = spectrum(latents), latents.clone()
        marked[0, -1, self.on_ring] = self.rings(spec.secret).to(marked.dtype)
        marked[0, 0, self.on_ring] = self.noise(spec.secret)
        latents[:, [0, -1]] = from_spectrum(marked)[:, [0, -1]]
        return latents

    def distances(self, state: Tensor) -> NDArray[np.float64]:
        """To every key: the smaller of the two channels' mean L1 distances, (B, 2^11)."""
        found = spectrum(state)[..., self.on_ring]  # (B, C, n)
        apart = torch.stack([(found[:, -1] - self.rings(np.full(self.bits, bit))).abs() for bit in (0, 1)])
        summed = torch.zeros(2, len(found), self.bits).index_add_(2, self.ring, apart)
        keys = torch.from_numpy(self.keys).float()
        rings = (summed[1] @ keys.T + summed[0] @ (1 - keys).T) / len(self.ring)
        noise = torch.stack([(one - self.noises).abs().mean(dim=1) for one in found[:, 0]])
        return torch.minimum(rings, noise).double().numpy()

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A bit's margin is how much farther the nearest key is that has the other bit; the score: -distance."""
        distances, ones = self.distances(state), self.keys.astype(bool)
        margins = [distances[:, ~bit].min(axis=1) - distances[:, bit].min(axis=1) for bit in ones.T]
        own = [row[self.number(secret)] for row, secret in zip(distances, secrets, strict=True)]
        return np.stack(margins, axis=1), -np.asarray(own)
