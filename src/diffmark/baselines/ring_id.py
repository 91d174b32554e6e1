"""RingID (Ci et al., 2024): eleven rings of discrete value, so 2^11 keys, and a second channel of fixed noise.

As in its paper: ring radii 3 to 13 in the last channel, each ring plus or minus one standard deviation of a noise
spectrum; the first channel's spectrum is replaced inside the same disc by a fixed draw of noise, which serves
verification. Rings are decided one by one, which is the nearest of all 2^11 keys. Deviation: radii are kept on
smaller latents too, where they fill nearly the whole spectrum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffmark.baselines.inversion import InversionMethod, from_spectrum, key_noise, radii, spectrum
from diffmark.mark.generation import ImageSpec
from diffmark.secret import Bits

FIRST, LAST = 3, 13


class RingID(InversionMethod):
    """A key an image, identified by the rings."""

    name, bits = "ring-id", LAST - FIRST + 1

    def __init__(self, pipe: Any, *arguments: Any, noise_seed: int = 0, **options: Any) -> None:
        super().__init__(pipe, *arguments, **options)
        self.ring = radii(self.side).round()
        self.disc = self.ring <= LAST
        self.value = float(self.side)  # standard deviation of the spectrum of unit noise
        self.noise = spectrum(key_noise(self.side, noise_seed))

    def rings(self, secret: Bits) -> Tensor:
        """The key's spectrum, zero outside the rings, (side, side)."""
        pattern = torch.zeros(self.side, self.side, dtype=torch.complex64)
        for index, bit in enumerate(secret):
            pattern[self.ring == FIRST + index] = self.value * (2 * int(bit) - 1)
        return pattern

    def imprint(self, latents: Tensor, spec: ImageSpec) -> Tensor:
        marked, latents = spectrum(latents), latents.clone()
        on_ring = (self.ring >= FIRST) & self.disc
        marked[0, -1, on_ring] = self.rings(spec.secret)[on_ring]
        marked[0, 0, self.disc] = self.noise[self.disc]
        latents[:, [0, -1]] = from_spectrum(marked)[:, [0, -1]]
        return latents

    def read_state(
        self, state: Tensor, secrets: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The score is the correlation with the key's rings plus that with the noise channel."""
        found = spectrum(state)
        margins = self._margins(found)
        rings = (margins * (2.0 * secrets - 1)).mean(axis=1)
        wanted = self.noise[self.disc]
        noise = (found[:, 0, self.disc] * wanted.conj()).real.sum(dim=1) / wanted.abs().square().sum()
        return margins, rings + noise.double().numpy()

    def _margins(self, found: Tensor) -> NDArray[np.float64]:
        """Mean of the real part on each ring, in units of the ring's value."""
        means = [found[:, -1, self.ring == FIRST + index].real.mean(dim=1) for index in range(self.bits)]
        return (torch.stack(means, dim=1) / self.value).double().numpy()
