"""What a share of delta has to know of the scheduler: its scale, its memory, and whether it delivers a dose."""

from __future__ import annotations

from typing import Any

from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
from torch import Tensor

# Schedulers that tests hold to the dose. Others may rebuild a sample from before the share and lose it.
SCHEDULERS = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)


def delivers(scheduler: Any) -> bool:
    """Whether a dose that is spread over steps arrives at z0."""
    return type(scheduler).__name__ in SCHEDULERS and getattr(scheduler.config, "skip_prk_steps", True)


def steps_of(pipe: Any) -> int:
    """Steps of the run that begins; img2img starts in the middle of the schedule."""
    return getattr(pipe, "num_timesteps", None) or len(pipe.scheduler.timesteps)


def latent_scale(scheduler: Any, index: int, steps: int) -> float:
    """Length of one unit of variance-preserving latents in the scheduler's own latents at step `index` of `steps`.

    Euler and its kin carry z / sqrt(abar) = z * sqrt(1 + sigma^2); they tell it by an init_noise_sigma other
    than 1. The others, flow matching included, carry what the denoiser sees.
    """
    if float(getattr(scheduler, "init_noise_sigma", 1.0)) == 1.0:
        return 1.0
    first = len(scheduler.timesteps) - steps
    return float((1 + scheduler.sigmas[first + index].cpu().double() ** 2).sqrt())


def shift_history(scheduler: Any, share: Tensor) -> None:
    """Let a multistep solver's memory jump along with its latents.

    DPM++ and UniPC extrapolate from earlier predictions of z0, and UniPC's corrector rebuilds the sample from the
    previous one. Left alone they would take the jump for curvature: DPM++ overshoots, UniPC undoes it. A share at
    noise level t moves z0 by share / alpha_t, and a sample at level s by alpha_s times that.
    """
    if not isinstance(scheduler, (DPMSolverMultistepScheduler, UniPCMultistepScheduler)):
        return
    step = scheduler.step_index
    alpha_t, _ = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[step])
    jump = share / alpha_t
    predicts_z0 = getattr(scheduler, "predict_x0", "++" in scheduler.config.get("algorithm_type", ""))
    if predicts_z0:
        scheduler.model_outputs = [
            past if past is None else (past + jump).to(past.dtype) for past in scheduler.model_outputs
        ]
    if getattr(scheduler, "last_sample", None) is not None:
        alpha_s, _ = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[step - 1])
        scheduler.last_sample = scheduler.last_sample + (jump * alpha_s).to(scheduler.last_sample.dtype)
