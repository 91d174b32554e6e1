"""Latent consistency distillation (Luo et al. 2023) of a Vista model, with guidance embedding."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import LatentConsistencyModelPipeline, LCMScheduler
from torch import Tensor
from torch.nn import functional as F

from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.scenes import random_caption
from diffmark.vista.training.data import Landscapes, landscapes
from diffmark.vista.training.unet import build_unet, save_pipeline


@dataclass(frozen=True)
class LCMConfig:
    """A run of `diffmark vista train lcm`."""

    loop: LoopConfig
    scenes: int = 12000
    guidance_width: int = 64
    guidance_low: float = 2.0
    guidance_high: float = 8.0
    solver_steps: int = 12  # of the teacher's DDIM trajectory: with 50, small errors of each add up to grain
    opening: int = 0  # steps over which noise levels open, lowest first: each learns from the one below
    huber: float = 0.01
    emphasis: float = 0.0  # more weight where a sun, a moon or an object is
    twins: bool = False  # each scene also with the objects that it has not


def boundary_scalings(
    t: Tensor, sigma_data: float = 0.5, timestep_scaling: float = 10.0
) -> tuple[Tensor, Tensor]:
    """c_skip and c_out (B, 1, 1, 1) of the consistency function; at t = 0 it is the identity."""
    scaled = t.view(-1, 1, 1, 1) * timestep_scaling
    total = scaled**2 + sigma_data**2
    return sigma_data**2 / total, scaled / total.sqrt()


def guidance_embedding(guidance: Tensor, width: int) -> Tensor:
    """Sines and cosines of guidance scales (B,), as diffusers' pipelines embed them, (B, width)."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half) * -(torch.log(torch.tensor(10000.0)) / (half - 1)))
    angles = (guidance - 1)[:, None] * 1000 * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], 1)


class LCMJob:
    """One step of the consistency function must agree with a guided solver step of the teacher before it."""

    def __init__(self, config: LCMConfig, data: Landscapes, teacher: Any) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.data, self.teacher = config, data, teacher
        for part in (teacher.unet, teacher.text_encoder):
            part.requires_grad_(False).eval()
        made = teacher.unet.config
        self.model = build_unet(
            tuple(made.block_out_channels),
            made.layers_per_block,
            made.cross_attention_dim,
            config.guidance_width,
        )
        missing, unexpected = self.model.load_state_dict(teacher.unet.state_dict(), strict=False)
        if unexpected or any("cond_proj" not in name for name in missing):
            raise ValueError(f"teacher: its UNet does not fit, missing {missing}, unexpected {unexpected}")
        torch.nn.init.zeros_(self.model.time_embedding.cond_proj.weight)  # starts as the teacher
        self.signal = teacher.scheduler.alphas_cumprod

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, draws.numpy
        picked = rng.integers(len(self.data.latents), size=config.loop.batch)
        z0 = self.data.latents[torch.from_numpy(picked)].contiguous(memory_format=torch.channels_last)
        noise = torch.randn(z0.shape, generator=draws.torch)
        stride, levels = 1000 // config.solver_steps, self.open_levels(step)
        late = torch.randint(1, levels + 1, (len(z0),), generator=draws.torch) * stride - 1
        early = (late - stride).clamp(min=0)
        span = config.guidance_high - config.guidance_low
        guidance = config.guidance_low + span * torch.rand(len(z0), generator=draws.torch)
        z_late = self.teacher.scheduler.add_noise(z0, noise, late)
        with torch.no_grad():
            captions = [random_caption(self.data.scenes[i], rng) for i in picked]
            text, empty = self._text(captions), self._text([""] * len(z0))
            both = self.teacher.unet(
                torch.cat([z_late] * 2), torch.cat([late] * 2), torch.cat([empty, text])
            ).sample
            without, given = both.chunk(2)
            epsilon = without + guidance.view(-1, 1, 1, 1) * (given - without)
            z_early = self._move(z_late, epsilon, late, early)
        embedding = guidance_embedding(guidance, config.guidance_width)
        student = self.consistent(z_late, late, text, embedding)
        with torch.no_grad():
            target = self.consistent(z_early, early, text, embedding)
        error = ((student - target).pow(2) + config.huber**2).sqrt() - config.huber
        return self.data.emphasised(error, config.emphasis, picked).mean(), {
            "mse": F.mse_loss(student, target)
        }

    def open_levels(self, step: int) -> int:
        """How many noise levels of the solver are trained at a step."""
        share = min(1.0, (step + 1) / self.config.opening) if self.config.opening else 1.0
        return max(1, round(share * self.config.solver_steps))

    def consistent(self, z: Tensor, t: Tensor, text: Tensor, embedding: Tensor) -> Tensor:
        """The consistency function: latents at any t (B,) to z0."""
        epsilon = self.model(z, t, text, timestep_cond=embedding).sample
        signal = self.signal[t].view(-1, 1, 1, 1)
        z0 = (z - (1 - signal).sqrt() * epsilon) / signal.sqrt()
        skip, out = boundary_scalings(t.float())
        return skip * z + out * z0

    def _move(self, z: Tensor, epsilon: Tensor, late: Tensor, early: Tensor) -> Tensor:
        """A DDIM step between two times."""
        a, b = (self.signal[t].view(-1, 1, 1, 1) for t in (late, early))
        z0 = (z - (1 - a).sqrt() * epsilon) / a.sqrt()
        return b.sqrt() * z0 + (1 - b).sqrt() * epsilon

    def _text(self, captions: list[str]) -> Tensor:
        tokens = self.teacher.tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt")
        return self.teacher.text_encoder(tokens.input_ids)[0]


def train_lcm(config: LCMConfig, folder: Path, teacher: Any, stop_after: int | None = None) -> Any:
    """Distil `teacher`, an epsilon pipeline, and save the LCM pipeline to `folder/model`."""
    data = landscapes(
        teacher.vae.eval(), folder.parent / "cache", config.scenes, None, config.emphasis > 0, config.twins
    )
    job = LCMJob(config, data, teacher)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    pipeline: Any = LatentConsistencyModelPipeline(
        vae=teacher.vae,
        text_encoder=teacher.text_encoder,
        tokenizer=teacher.tokenizer,
        unet=job.model.eval(),
        scheduler=LCMScheduler.from_config(
            teacher.scheduler.config, original_inference_steps=config.solver_steps
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    save_pipeline(pipeline, folder / "model")
    return pipeline
