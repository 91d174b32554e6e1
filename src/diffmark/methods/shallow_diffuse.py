"""Shallow Diffuse (Li et al., 2025): the mark is put in at an intermediate time, where the model's map to the image
has low rank, and inversion runs only to that time; presence only.

As in its paper: diffusion time 0.3, the last channel, rings of constant value around the highest frequencies,
radius 8 of 64, test as for Tree-Ring. Deviation: on smaller latents the radius keeps its share of the side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffmark.generation import Order
from diffmark.methods.inversion import InversionMethod, pattern_p_value, ring_pattern

TIME = 0.3


class ShallowDiffuse(InversionMethod):
    """One key for all images; the score is minus the log10 of the p-value."""

    name, bits = "shallow-diffuse", 0

    def __init__(
        self, pipe: Any, *arguments: Any, key_seed: int = 0, channel: int = -1, **options: Any
    ) -> None:
        super().__init__(pipe, *arguments, **options)
        self.channel = channel
        noise = torch.randn(self.side, self.side, generator=torch.Generator().manual_seed(key_seed))
        # An uncentred transform has the highest frequencies in the middle.
        self.mask, self.pattern = ring_pattern(torch.fft.fft2(noise), round(8 * self.side / 64))

    def imprint(self, latents: Tensor) -> Tensor:
        """Latents at the time of the mark with the pattern in their spectrum."""
        marked = torch.fft.fft2(latents[:, self.channel])
        marked[:, self.mask] = self.pattern[self.mask]
        latents = latents.clone()
        latents[:, self.channel] = torch.fft.ifft2(marked).real
        return latents

    def generate(self, order: Order) -> Image.Image:
        trained = self.pipe.scheduler.config.num_train_timesteps

        def mark(pipe: Any, step: int, timestep: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            times = pipe.scheduler.timesteps
            following = float(times[step + 1]) if step + 1 < len(times) else 0.0
            if following <= TIME * trained < float(timestep):
                tensors["latents"] = self.imprint(tensors["latents"])
            return tensors

        return self.paint(order, self.start(order), callback_on_step_end=mark)

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        raise TypeError("Shallow Diffuse tells presence only: use score")

    def score(self, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> NDArray[np.float64]:
        found = torch.fft.fft2(self.invert(images, TIME)[:, self.channel])[:, self.mask]
        p_values = [pattern_p_value(row, self.pattern[self.mask]) for row in found]
        return -np.log10(np.maximum(p_values, 1e-300))
