"""Shallow Diffuse (Li et al., 2025): the mark is put in at an intermediate time, where the model's map to the image
has low rank, and inversion runs only to that time; presence only.

As in its paper and code: diffusion time 0.3, the last channel, complex rings around the highest frequencies (the
middle of a spectrum that is not centred), radius 10, ranked by mean L1 distance in the disc; after the last step
all channels but the marked one are those of the same run without a mark. The radius stays on smaller latents, where
it is more of the spectrum.

Deviations: the model is guided after the mark as before it, so that the picture without a mark is the model's own
(the code drops guidance there, in both); the disc is centred; p-values are of our test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from diffmark.baselines.inversion import RingMethod, key_noise, parted, ring_pattern
from diffmark.latent.bridge import Trajectory, denoiser_of, detached_ddim_path, sampler_trajectory
from diffmark.mark.generation import ImageSpec


class ShallowDiffuse(RingMethod):
    """One key for all images."""

    name = "shallow-diffuse"

    def __init__(
        self,
        pipe: Any,
        *arguments: Any,
        key_seed: int = 0,
        radius: int = 10,
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

    @torch.no_grad()
    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """Guided to the time of the mark; then with and without it, and one channel of the first."""
        prompts, pipe = [spec.prompt for spec in specs], self.pipe
        with_prompt = pipe.encode_prompt(prompts, pipe.device, 1, False)[0]
        empty = pipe.encode_prompt("", pipe.device, 1, False)[0]
        guidance = self.sampling.guidance if self.sampling.guidance > 1 else 1.0
        denoise = denoiser_of(pipe.unet, pipe.scheduler, with_prompt, empty=empty, guidance=guidance)
        before, rest = parted(sampler_trajectory(pipe.scheduler, self.sampling.steps), self.time)

        def run(latents: Tensor, trajectory: Trajectory) -> Tensor:
            unmarked = [0.0] * len(trajectory.abar)
            return detached_ddim_path(denoise, latents, None, unmarked, trajectory)

        reached = run(torch.cat([self.start(spec) for spec in specs]), before)
        z0 = run(reached, rest)
        z0[:, self.channel] = run(self.imprint(reached), rest)[:, self.channel]
        return self.decoded(z0)

    def transform(self, latents: Tensor) -> Tensor:
        return torch.fft.fft2(latents)
