"""Sampling as functions of tensors: the differentiable bridge (LCM or few-step DDIM), the detached DDIM path and
DDIM inversion.

A path starts at latents `z`, adds share k of delta before the denoiser sees step k, and the last share to z0. The
shares are `Injection.weights(trajectory.times)`, the same object that marks images in diffusers pipelines. The
denoiser is frozen: gradients pass through it to delta and stop there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Denoiser = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # (z, timestep) -> (x0, noise), see `denoiser_of`

SIGMA_DATA = 0.5  # of the consistency function's boundary scalings


@dataclass(frozen=True)
class Trajectory:
    """The noise levels that a sampler visits, from noise to image."""

    timesteps: tuple[int, ...]  # t_1 > ... > t_n
    abar: tuple[float, ...]  # (n + 1): at each timestep, and after the last
    train_steps: int = 1000  # T

    @property
    def times(self) -> NDArray[np.float64]:
        """Timesteps as diffusion times in [0, 1], for `Injection.weights`."""
        return np.asarray(self.timesteps, dtype=np.float64) / self.train_steps


def sampler_trajectory(scheduler: Any, steps: int) -> Trajectory:
    """The timesteps that a diffusers scheduler (DDIM, LCM) takes in `steps` steps."""
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(steps)
    return _trajectory(scheduler, [int(t) for t in scheduler.timesteps])


def late_trajectory(scheduler: Any, steps: int, start: float) -> Trajectory:
    """`steps` even steps from diffusion time `start` to the image: the bridge of late injection."""
    total = scheduler.config.num_train_timesteps
    knots = np.rint(np.linspace(start * total, 0, steps + 1)).astype(int)[:-1]
    return _trajectory(scheduler, [min(int(t), total - 1) for t in knots])


def _trajectory(scheduler: Any, timesteps: list[int]) -> Trajectory:
    levels = scheduler.alphas_cumprod
    # Where diffusers ends: at abar = 1, or at the first level of training (set_alpha_to_one = False).
    last = float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    abar = [float(levels[t]) for t in timesteps] + [last]
    return Trajectory(tuple(timesteps), tuple(abar), scheduler.config.num_train_timesteps)


# --- one step ------------------------------------------------------------------------------------------------


def noised(z0: Tensor, noise: Tensor, abar: float) -> Tensor:
    """Eq. 1: z_t = sqrt(abar) z0 + sqrt(1 - abar) noise."""
    return abar**0.5 * z0 + (1 - abar) ** 0.5 * noise


def inject(z: Tensor, delta: Tensor | None, weight: float) -> Tensor:
    """Eq. 5: z + weight * delta; no delta is the clean path."""
    return z if delta is None or weight == 0 else z + weight * delta


def guided(conditional: Tensor, unconditional: Tensor, guidance: float) -> Tensor:
    """Eq. 6 in diffusers' scale: guidance = w + 1."""
    return unconditional + guidance * (conditional - unconditional)


def ddim_step(x0: Tensor, noise: Tensor, abar_next: float) -> Tensor:
    """Eq. 8, deterministic DDIM: the predicted image taken back to the next noise level."""
    return abar_next**0.5 * x0 + (1 - abar_next) ** 0.5 * noise


def consistency(z: Tensor, x0: Tensor, timestep: int, scaling: float = 10.0) -> Tensor:
    """f = c_skip z + c_out x0, which is z itself at t = 0 (latent consistency models, Sec. 2.2)."""
    scaled = timestep * scaling
    c_skip = SIGMA_DATA**2 / (scaled**2 + SIGMA_DATA**2)
    c_out = scaled / (scaled**2 + SIGMA_DATA**2) ** 0.5
    return c_skip * z + c_out * x0


# --- whole paths ---------------------------------------------------------------------------------------------


def lcm_path(
    denoise: Denoiser,
    z: Tensor,
    delta: Tensor | None,
    weights: Sequence[float] | NDArray[np.float64],
    trajectory: Trajectory,
    noises: Sequence[Tensor],
    checkpointing: bool = False,
    scaling: float = 10.0,
) -> Tensor:
    """Eq. 13: K consistency steps from z_T to z0. `noises` are the K - 1 draws of re-noising between them.

    The marked and the clean path are given the same z_T and the same draws, so they differ by delta alone.
    """
    steps = len(trajectory.timesteps)
    if len(noises) != steps - 1:
        raise ValueError(f"{steps} LCM steps re-noise {steps - 1} times, got {len(noises)} draws")
    for k, timestep in enumerate(trajectory.timesteps):
        z = inject(z, delta, float(weights[k]))
        x0, _ = _denoise(denoise, z, timestep, checkpointing)
        z = consistency(z, x0, timestep, scaling)
        if k < steps - 1:
            z = noised(z, noises[k], trajectory.abar[k + 1])
    return inject(z, delta, float(weights[-1]))


def ddim_path(
    denoise: Denoiser,
    z: Tensor,
    delta: Tensor | None,
    weights: Sequence[float] | NDArray[np.float64],
    trajectory: Trajectory,
    checkpointing: bool = False,
) -> Tensor:
    """Few DDIM steps, differentiable: the bridge of late injection, and of models that have no LCM."""
    for k, timestep in enumerate(trajectory.timesteps):
        z = inject(z, delta, float(weights[k]))
        x0, noise = _denoise(denoise, z, timestep, checkpointing)
        z = ddim_step(x0, noise, trajectory.abar[k + 1])
    return inject(z, delta, float(weights[-1]))


@torch.no_grad()
def detached_ddim_path(
    denoise: Denoiser,
    z: Tensor,
    delta: Tensor | None,
    weights: Sequence[float] | NDArray[np.float64],
    trajectory: Trajectory,
) -> Tensor:
    """Eq. 15: N DDIM steps with sg(delta), as a pipeline takes them; no gradient reaches anything."""
    return ddim_path(denoise, z, delta, weights, trajectory)


@torch.no_grad()
def ddim_inversion(denoise: Denoiser, z0: Tensor, trajectory: Trajectory) -> Tensor:
    """Eq. 2 run backwards: an estimate of the z_T that DDIM takes to z0 along `trajectory`."""
    z = z0
    for k in reversed(range(len(trajectory.timesteps))):
        # The noise at the next level is asked for where the sampler would: at that level's timestep.
        timestep, level = trajectory.timesteps[k], trajectory.abar[k + 1]
        _, noise = denoise(z, timestep)
        x0 = (z - (1 - level) ** 0.5 * noise) / level**0.5
        z = ddim_step(x0, noise, trajectory.abar[k])
    return z


def _denoise(denoise: Denoiser, z: Tensor, timestep: int, checkpointing: bool) -> tuple[Tensor, Tensor]:
    if checkpointing and torch.is_grad_enabled() and z.requires_grad:
        return checkpoint(denoise, z, timestep, use_reentrant=False)
    return denoise(z, timestep)


# --- denoisers of diffusers ------------------------------------------------------------------------------------


def denoiser_of(
    unet: Any,
    scheduler: Any,
    embeddings: Tensor,
    *,
    empty: Tensor | None = None,
    guidance: float = 1.0,
    timestep_cond: Tensor | None = None,
    added: dict[str, Tensor] | None = None,
) -> Denoiser:
    """A frozen UNet with its conditioning, as a function (z, timestep) -> (x0, noise).

    `embeddings` (B, S, d) are the prompts', `empty` the empty prompt's, needed where guidance is not 1.
    `timestep_cond` is an LCM's guidance embedding, `added` what SDXL's UNet wants besides.
    """
    kind = scheduler.config.prediction_type
    if kind not in ("epsilon", "v_prediction", "sample"):
        raise ValueError(f"prediction type {kind!r} is not supported; epsilon, v_prediction and sample are")
    if guidance != 1 and empty is None:
        raise ValueError(f"guidance {guidance} needs the embeddings of the empty prompt")
    levels = scheduler.alphas_cumprod
    more: dict[str, Any] = {"added_cond_kwargs": added} if added else {}

    def predict(z: Tensor, timestep: int, context: Tensor) -> Tensor:
        return unet(z, timestep, context.to(z.dtype), timestep_cond=timestep_cond, **more).sample

    def denoise(z: Tensor, timestep: int) -> tuple[Tensor, Tensor]:
        output = predict(z, timestep, embeddings)
        if guidance != 1 and empty is not None:
            output = guided(output, predict(z, timestep, empty.expand_as(embeddings)), guidance)
        return predictions(output, z, float(levels[timestep]), kind)

    return denoise


def predictions(output: Tensor, z: Tensor, abar: float, kind: str) -> tuple[Tensor, Tensor]:
    """A model's output as (x0, noise), whichever of noise, velocity and image it predicts."""
    a, b = abar**0.5, (1 - abar) ** 0.5
    if kind == "epsilon":
        return (z - b * output) / a, output
    if kind == "v_prediction":
        return a * z - b * output, a * output + b * z
    return output, (z - a * output) / b
