"""Shallow Diffuse (Li et al., 2025): the mark is put in at an intermediate time, where the model's map to the image
has low rank, and inversion runs only to that time; presence only.

As in its paper: diffusion time 0.3, the last channel, rings of constant value around the highest frequencies,
radius 8, test as for Tree-Ring. As there, the radius stays on smaller latents, where it is more of the spectrum.
Rings are complex, as in its paper, and real latents keep half of their energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from diffmark.baselines.inversion import RingMethod, key_noise, ring_pattern
from diffmark.mark.generation import ImageSpec


class ShallowDiffuse(RingMethod):
    """One key for all images."""

    name = "shallow-diffuse"

    def __init__(
        self,
        pipe: Any,
        *arguments: Any,
        key_seed: int = 0,
        radius: int = 8,
        time: float = 0.3,
        **options: Any,
    ) -> None:
        super().__init__(pipe, *arguments, **options)
        self.time = time
        # An uncentred transform has the highest frequencies in the middle.
        drawn = torch.fft.fft2(key_noise(self.side, key_seed))
        self.mask, self.pattern = ring_pattern(drawn, min(radius, self.side // 2 - 1))

    def imprint(self, latents: Tensor, spec: ImageSpec | None = None) -> Tensor:
        """Latents at the time of the mark with the pattern in their spectrum; the same for all specs."""
        marked = torch.fft.fft2(latents[:, self.channel])
        marked[:, self.mask] = self.pattern[self.mask]
        latents = latents.clone()
        latents[:, self.channel] = torch.fft.ifft2(marked).real
        return latents

    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        trained = self.pipe.scheduler.config.num_train_timesteps

        def mark(pipe: Any, step: int, timestep: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            times = pipe.scheduler.timesteps
            following = float(times[step + 1]) if step + 1 < len(times) else 0.0
            if following <= self.time * trained < float(timestep):
                tensors["latents"] = self.imprint(tensors["latents"])
            return tensors

        starts = torch.cat([self.start(spec) for spec in specs])
        return self.paint(specs, starts, callback_on_step_end=mark)

    def transform(self, latents: Tensor) -> Tensor:
        return torch.fft.fft2(latents)
