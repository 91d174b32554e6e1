"""Regeneration: the picture is noised and painted again by a surrogate model that did not make it (WAVES)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from diffmark.attacks.base import Attack
from diffmark.bridge import ddim_path, denoiser_of, late_trajectory, noised
from diffmark.images import read_image
from diffmark.vae import decode, encode

STRIDE = 20  # training steps between two denoising steps, as in a run of fifty


class Regeneration:
    """Regeneration with one surrogate pipeline, the empty prompt."""

    def __init__(self, pipe: Any, rounds: int = 1) -> None:
        self.pipe, self.rounds = pipe, rounds

    @torch.no_grad()
    def __call__(self, image: Image.Image, steps: float, rng: np.random.Generator) -> Image.Image:
        """Noise to `steps` of the training steps, denoise; `rounds` times."""
        for _ in range(self.rounds):
            image = self._once(image, steps, rng)
        return image

    def _once(self, image: Image.Image, steps: float, rng: np.random.Generator) -> Image.Image:
        pipe = self.pipe
        z0 = encode(pipe.vae, torch.from_numpy(read_image(image).pixels())[None].to(pipe.device))
        start = steps / pipe.scheduler.config.num_train_timesteps
        trajectory = late_trajectory(pipe.scheduler, max(1, round(steps / STRIDE)), start)
        noise = torch.from_numpy(rng.standard_normal(tuple(z0.shape), np.float32)).to(z0)
        empty = pipe.encode_prompt("", pipe.device, 1, False)[0]
        denoise = denoiser_of(pipe.unet, pipe.scheduler, empty)
        shares = np.zeros(len(trajectory.timesteps) + 1)
        z = ddim_path(denoise, noised(z0, noise, trajectory.abar[0]), None, shares, trajectory)
        pixels = ((decode(pipe.vae, z)[0].clamp(-1, 1) + 1) * 127.5).round()
        return Image.fromarray(pixels.permute(1, 2, 0).byte().cpu().numpy())


def regeneration_attacks(surrogate: Any) -> tuple[Attack, ...]:
    """Diffusion once, and twice at half the range, with a surrogate pipeline."""
    unit = "noising steps of 1000"
    return (
        Attack("regen_diffusion", "regeneration", 40, 200, unit, Regeneration(surrogate)),
        Attack("rinse_2x", "regeneration", 20, 100, unit, Regeneration(surrogate, rounds=2)),
    )
