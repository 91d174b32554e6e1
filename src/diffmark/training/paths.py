"""The two ways from delta to z0 in training, for every injection mode.

mode                      starts at                         bridge                         DDIM path
persistent, paper, mean   z_T and a prompt                  K steps of the LCM, or of      N steps with guidance
                                                            DDIM where there is no LCM
late                      latents of a picture, noised to   K steps of DDIM, below the     the last of N steps,
                          the injection's start             injection's end too            with guidance
final                     latents of a picture              none: z0 + delta               none: z0 + delta

Bridge and DDIM path add delta as the codec's injection says, or each as its own (paths.bridge_injection and
ddim_injection): the paper's Algorithm 2 has delta at every step of the bridge, delta / N at those of the DDIM path,
and delta again at inference. The models are frozen, and embeddings of prompts are made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffmark.latent import bridge
from diffmark.latent.bridge import Trajectory
from diffmark.latent.injection import Injection
from diffmark.training.config import TrainingConfig
from diffmark.training.draws import Draws
from diffmark.training.sources import Pictures

NOWHERE = Trajectory((), (1.0,))


@dataclass(frozen=True)
class Start:
    """Where the paths of one batch start; the marked and the clean one share it."""

    z: Tensor  # z_T, or z0 of pictures
    noises: tuple[Tensor, ...]  # what an LCM re-noises with; what pictures are noised with for a late start
    embeddings: Tensor | None  # (B, S, d)
    lcm_embeddings: Tensor | None = None  # where the LCM has its own text encoder

    def first(self, count: int) -> Start:
        """The first `count` of the batch."""
        texts = [None if text is None else text[:count] for text in (self.embeddings, self.lcm_embeddings)]
        return Start(self.z[:count], tuple(noise[:count] for noise in self.noises), *texts)


@dataclass(frozen=True)
class Denoisers:
    """A frozen pipeline's UNet and scheduler, and those of its LCM; embeddings of prompts (P, S, d)."""

    unet: Any
    scheduler: Any
    embeddings: Tensor
    empty: Tensor  # (1, S, d)
    lcm: Any = None  # the LCM's pipeline
    lcm_embeddings: Tensor | None = None  # where the LCM has its own text encoder


class Paths:
    """Draws starts and runs both paths, each with the shares of its Injection."""

    def __init__(
        self,
        config: TrainingConfig,
        latents: Tensor | None = None,
        held_out: Tensor | None = None,
        denoisers: Denoisers | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.injection, self.device = config, config.dosing.injection, device
        mode = self.injection.mode
        on_pictures = mode in ("late", "final")
        self.latents, self.held_out = (latents, held_out) if on_pictures else (None, None)
        self.denoisers = denoisers
        if on_pictures and latents is None:
            raise ValueError(f"injection mode {mode!r} trains on pictures: give data.pictures")
        if mode != "final" and denoisers is None:
            raise ValueError(f"injection mode {mode!r} goes through a denoiser: give model.pipeline")
        self.uses_lcm = mode not in ("late", "final") and denoisers is not None and denoisers.lcm is not None
        self.bridge_trajectory, self.ddim_trajectory = self._trajectories()
        _, on_bridge, on_ddim = config.injections
        self.bridge_weights = shares(on_bridge, self.bridge_trajectory)
        self.ddim_weights = shares(on_ddim, self.ddim_trajectory)

    def _trajectories(self) -> tuple[Trajectory, Trajectory]:
        if self.denoisers is None or self.injection.mode == "final":
            return NOWHERE, NOWHERE
        paths, scheduler = self.config.paths, self.denoisers.scheduler
        whole = bridge.sampler_trajectory(scheduler, paths.ddim_steps) if paths.ddim_steps else NOWHERE
        if self.injection.mode == "late":
            kept = [k for k, time in enumerate(whole.times) if time <= self.injection.start]
            tail = Trajectory(
                tuple(whole.timesteps[k] for k in kept),
                (*(whole.abar[k] for k in kept), whole.abar[-1]),
                whole.train_steps,
            )
            return bridge.late_trajectory(scheduler, paths.steps, self.injection.start), tail
        source = self.denoisers.lcm.scheduler if self.uses_lcm else scheduler
        return bridge.sampler_trajectory(source, paths.steps), whole

    def draw(self, draws: Draws, count: int, held_out: bool = False) -> Start:
        """The starts of a batch; `held_out` takes latents that are not trained on."""
        codec = self.config.codec
        shape = (count, codec.channels, codec.height, codec.width)
        pool = self.held_out if held_out else self.latents
        rows = draws.indices(count, len(pool)) if pool is not None else None
        embeddings = lcm_embeddings = None
        if self.denoisers is not None:
            prompts = len(self.denoisers.embeddings)
            paired = rows is not None and pool is not None and prompts == len(pool)
            prompt_rows = rows if paired else draws.indices(count, prompts)
            embeddings = self.denoisers.embeddings[prompt_rows].to(self.device)
            if self.uses_lcm and self.denoisers.lcm_embeddings is not None:
                lcm_embeddings = self.denoisers.lcm_embeddings[prompt_rows].to(self.device)
        if pool is None or rows is None:
            z = draws.normal(*shape)
            noises = tuple(draws.normal(*shape) for _ in range(self.config.paths.steps - 1))
            return Start(z, noises if self.uses_lcm else (), embeddings, lcm_embeddings)
        z = pool[rows].float().to(self.device)
        return Start(z, (draws.normal(*shape),) if self.injection.mode == "late" else (), embeddings)

    def entered(self, start: Start, trajectory: Trajectory) -> Tensor:
        """Where a trajectory begins; a late one on pictures noised to its first step."""
        if self.injection.mode != "late":
            return start.z
        return bridge.noised(start.z, start.noises[0], trajectory.abar[0])

    def bridge(self, start: Start, delta: Tensor | None) -> Tensor:
        """z0 of the differentiable path; the clean one for delta None, without gradient."""
        if delta is None:
            with torch.no_grad():
                return self._bridge(start, None)
        return self._bridge(start, delta)

    def _bridge(self, start: Start, delta: Tensor | None) -> Tensor:
        paths, trajectory, weights = self.config.paths, self.bridge_trajectory, self.bridge_weights
        if self.uses_lcm:
            denoise, scaling = self._lcm_denoiser(start)
            return bridge.lcm_path(
                denoise, start.z, delta, weights, trajectory, start.noises, paths.checkpointing, scaling
            )
        z = self.entered(start, trajectory)
        return bridge.ddim_path(self.denoiser(start), z, delta, weights, trajectory, paths.checkpointing)

    def ddim(self, start: Start, delta: Tensor | None) -> Tensor:
        """z0 of the detached path, as the pipeline makes it."""
        denoise = self.denoiser(start, self.config.paths.guidance)
        z = self.entered(start, self.ddim_trajectory)
        return bridge.detached_ddim_path(denoise, z, delta, self.ddim_weights, self.ddim_trajectory)

    def denoiser(self, start: Start, guidance: float = 1.0) -> Any:
        """The frozen denoiser with the prompts of `start`."""
        if self.denoisers is None or start.embeddings is None:
            return None  # no step of an empty trajectory asks for it
        models = self.denoisers
        empty = models.empty.to(self.device)
        return bridge.denoiser_of(
            models.unet, models.scheduler, start.embeddings, empty=empty, guidance=guidance
        )

    def _lcm_denoiser(self, start: Start) -> tuple[Any, float]:
        assert self.denoisers is not None  # what uses_lcm says
        assert start.embeddings is not None
        pipe, cond = self.denoisers.lcm, None
        if pipe.unet.config.time_cond_proj_dim is not None:
            w = torch.full((len(start.z),), self.config.paths.guidance - 1)
            cond = pipe.get_guidance_scale_embedding(w, embedding_dim=pipe.unet.config.time_cond_proj_dim)
            cond = cond.to(self.device, start.z.dtype)
        embeddings = start.embeddings if start.lcm_embeddings is None else start.lcm_embeddings
        denoise = bridge.denoiser_of(pipe.unet, pipe.scheduler, embeddings, timestep_cond=cond)
        return denoise, float(pipe.scheduler.config.timestep_scaling)


def shares(injection: Injection, trajectory: Trajectory) -> np.ndarray:
    """Weights of delta along a trajectory, (n + 1,); all of a final dose where there are no steps."""
    if not trajectory.timesteps:
        return injection.weights([0.0])[-1:]
    return injection.weights(trajectory.times)


def freeze(network: Any) -> None:
    """No gradients, no dropout, channels last in memory."""
    network.requires_grad_(False).eval().to(memory_format=torch.channels_last)


@torch.no_grad()
def load_denoisers(
    config: TrainingConfig, prompts: list[str], device: torch.device | str = "cpu"
) -> tuple[Denoisers, nn.Module]:
    """The config's pipeline and LCM, frozen, with embeddings of `prompts`; and the pipeline's vae."""
    from diffmark.mark.loading import load_pipeline

    pipe = load_pipeline(config.model.pipeline, str(device))
    lcm = load_pipeline(config.model.lcm, str(device)) if config.model.lcm else None
    for part in (pipe, lcm):
        if part is None:
            continue
        if not hasattr(part, "unet") or part.unet.config.addition_embed_type is not None:
            raise ValueError(
                f"{type(part).__name__} cannot be trained through: only UNets with one text encoder are "
                "supported; injection mode 'final' trains with the vae alone, for every model"
            )
        freeze(part.unet)
        freeze(part.vae)
    embeddings, empty = embed(pipe, prompts, device), embed(pipe, [""], device)
    lcm_embeddings = None
    if lcm is not None and not torch.equal(embed(lcm, [""], device), empty):
        lcm_embeddings = embed(lcm, prompts, device)
    return Denoisers(pipe.unet, pipe.scheduler, embeddings, empty, lcm, lcm_embeddings), pipe.vae


@torch.no_grad()
def embed(pipe: Any, prompts: list[str], device: torch.device | str, batch: int = 64) -> Tensor:
    """Text embeddings of prompts, (P, S, d), on the CPU."""
    parts = []
    for start in range(0, len(prompts), batch):
        chunk = prompts[start : start + batch]
        parts.append(pipe.encode_prompt(chunk, device, 1, False)[0].cpu())
    return torch.cat(parts)


def read_prompts(path: str, pictures: Pictures | None) -> list[str]:
    """Prompts of a file, one a line; else the pictures' captions; else the empty prompt."""
    if path:
        prompts = [line.strip() for line in Path(path).read_text().splitlines() if line.strip()]
        if not prompts:
            raise ValueError(f"{path} has no prompt in it; one a line is expected")
        return prompts
    if pictures is not None and pictures.caption is not None:
        return [pictures.caption(i) for i in range(pictures.count)]
    return [""]
