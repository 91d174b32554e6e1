"""Diffusive regeneration inside training: latents are noised and denoised by the frozen denoiser, differentiably.

The attack Regen-Diff noises a picture's latents to a timestep and denoises them, 2x-Rinse does so twice. With a few
steps of it between writer and reader the encoder learns what a denoiser leaves, which is coarse, and the decoder to
read what is left.
"""

from __future__ import annotations

from torch import Tensor

from diffmark.latent import bridge
from diffmark.training.config import RegenerationConfig
from diffmark.training.draws import Draws
from diffmark.training.paths import Denoisers


def regenerate(z0: Tensor, models: Denoisers, config: RegenerationConfig, draws: Draws) -> Tensor:
    """z0 (B, C, h, w) noised to a drawn timestep and denoised without a prompt, once or as often as is drawn."""
    total = models.scheduler.config.num_train_timesteps
    empty = models.empty.to(z0).expand(len(z0), -1, -1)
    denoise = bridge.denoiser_of(models.unet, models.scheduler, empty)
    time = config.times[int(draws.indices(1, len(config.times)))]
    trajectory = bridge.late_trajectory(models.scheduler, config.steps, time / total)
    nothing = [0.0] * (config.steps + 1)
    for _ in range(1 + int(draws.indices(1, config.rounds))):
        z = bridge.noised(z0, draws.normal(*z0.shape), trajectory.abar[0])
        z0 = bridge.ddim_path(denoise, z, None, nothing, trajectory)
    return z0
