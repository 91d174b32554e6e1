"""Tree-Ring (Wen et al., 2023): Fourier rings in z_T, read by inversion; presence only.

As in its paper: the last latent channel, rings of constant value drawn like the spectrum of noise, radius 10 of 64.
Deviation: on smaller latents the radius keeps its share of the side (5 of 32), so fewer frequencies carry the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from diffmark.generation import Order
from diffmark.methods.inversion import InversionMethod, from_spectrum, pattern_p_value, ring_pattern, spectrum


class TreeRing(InversionMethod):
    """One key for all images; the score is minus the log10 of the p-value."""

    name, bits = "tree-ring", 0

    def __init__(
        self, pipe: Any, *arguments: Any, key_seed: int = 0, channel: int = -1, **options: Any
    ) -> None:
        super().__init__(pipe, *arguments, **options)
        self.channel = channel
        noise = torch.randn(self.side, self.side, generator=torch.Generator().manual_seed(key_seed))
        self.mask, self.pattern = ring_pattern(spectrum(noise), round(10 * self.side / 64))

    def generate(self, order: Order) -> Image.Image:
        latents = self.start(order)
        marked = spectrum(latents[:, self.channel])
        marked[:, self.mask] = self.pattern[self.mask]
        latents[:, self.channel] = from_spectrum(marked)
        return self.paint(order, latents)

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        raise TypeError("Tree-Ring tells presence only: use score")

    def score(self, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> NDArray[np.float64]:
        found = spectrum(self.invert(images)[:, self.channel])[:, self.mask]
        p_values = [pattern_p_value(row, self.pattern[self.mask]) for row in found]
        return -np.log10(np.maximum(p_values, 1e-300))
