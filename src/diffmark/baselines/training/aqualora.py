"""Train AquaLoRA: first the latent watermark and its decoder, then the LoRA on a model's UNet.

The adapter belongs to the UNet that it was trained on: when the model's weights change, train it again. The first
stage needs no UNet and is kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.baselines.aqualora import LatentWatermark, MessageLora, save_adapter
from diffmark.baselines.training.common import accuracy, annealed, random_signs, train_stage
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig
from diffmark.vista.library import load_pipeline
from diffmark.vista.scenes import caption, random_scene
from diffmark.vista.training.data import encoded


@dataclass(frozen=True)
class AquaLoraConfig:
    """A run of `diffmark baselines train aqualora`."""

    watermark: LoopConfig
    lora: LoopConfig
    model: str = "vista"
    bits: int = 48
    rank: int = 16
    scenes: int = 12000
    first_rms: float = 1.5  # of delta in latents; falls to `rms` by the middle of the first stage
    rms: float = 0.3
    noise: float = 0.3  # most noise that the first stage adds to latents
    min_snr: float = 5.0
    bits_weight: float = 0.3
    latest_bits: int = 600  # timesteps above this ask for no bits: there is no picture yet
    empty_share: float = 0.1


class WatermarkJob:
    """Messages through latents, with the distortions that latents can have: noise, softness, contrast, holes."""

    def __init__(self, config: AquaLoraConfig, latents: Tensor) -> None:
        torch.manual_seed(config.watermark.seed)
        self.config, self.latents = config, latents
        self.model = LatentWatermark(config.bits, latents.shape[1], latents.shape[2], rms=config.rms)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, draws.numpy
        picked = rng.integers(len(self.latents), size=config.watermark.batch)
        messages = random_signs(len(picked), config.bits, draws.torch)
        rms = annealed(config.first_rms, config.rms, 2 * step / config.watermark.steps)
        z = self.latents[torch.from_numpy(picked)] + self.model.delta(messages, rms)
        logits = self.model(distorted_latents(z, config.noise, draws))
        bits = F.binary_cross_entropy_with_logits(logits, (messages + 1) / 2)
        return bits, {"accuracy": accuracy(logits, messages)}


def distorted_latents(z: Tensor, noise: float, draws: Draws) -> Tensor:
    """Latents (B, C, h, w) with another contrast, noise, and sometimes softness or a hole."""
    rng = draws.numpy
    z = z * float(rng.uniform(0.8, 1.25)) + noise * rng.uniform() * torch.randn(
        z.shape, generator=draws.torch
    )
    if rng.uniform() < 0.3:
        z = F.avg_pool2d(z, 3, 1, 1, count_include_pad=False)
    if rng.uniform() < 0.2:
        top, left = (int(rng.integers(0, side - 8)) for side in z.shape[2:])
        mask = torch.ones(z.shape[2:])
        mask[top : top + 8, left : left + 8] = 0
        z = z * mask
    return z


class LoraJob:
    """Prior-preserving fine-tuning: to what the frozen UNet would say of noised z0, plus delta.

    What the LoRA is given holds a part of delta already: none to all of it in noise, all of it near z0, as in
    sampling. So it learns to draw delta as well as to keep it.
    """

    def __init__(
        self, config: AquaLoraConfig, latents: Tensor, watermark: LatentWatermark, pipe: Any
    ) -> None:
        torch.manual_seed(config.lora.seed)
        self.config, self.latents, self.pipe = config, latents, pipe
        self.frozen = copy.deepcopy(pipe.unet).eval()
        watermark.secret.requires_grad_(False)
        parts = {"lora": MessageLora(pipe.unet, config.bits, config.rank), "watermark": watermark}
        self.model = nn.ModuleDict(parts)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, draws.numpy
        lora: Any = self.model["lora"]
        watermark: Any = self.model["watermark"]
        picked = rng.integers(len(self.latents), size=config.lora.batch)
        z0 = self.latents[torch.from_numpy(picked)]
        messages = random_signs(len(z0), config.bits, draws.torch)
        noise = torch.randn(z0.shape, generator=draws.torch)
        t = torch.randint(0, 1000, (len(z0),), generator=draws.torch)
        abar = self.pipe.scheduler.alphas_cumprod[t].view(-1, 1, 1, 1)
        with torch.no_grad():
            captions = [self._caption(int(i), rng) for i in picked]
            text = self.pipe.encode_prompt(captions, "cpu", 1, False)[0]
            zt = abar.sqrt() * z0 + (1 - abar).sqrt() * noise
            delta = watermark.delta(messages)
            wanted = self._x0(self.frozen(zt, t, text).sample, zt, abar) + delta
        drawn = 1 - torch.rand(len(z0), generator=draws.torch) * t / 1000
        marked = zt + drawn.view(-1, 1, 1, 1) * abar.sqrt() * delta
        lora.set_message(messages)
        x0 = self._x0(lora.unet(marked, t, text).sample, marked, abar)
        error = ((x0 - wanted) ** 2).mean((1, 2, 3))
        snr = (abar / (1 - abar)).flatten()
        prior = (snr.clamp(max=config.min_snr) * error).mean()
        clear = t <= config.latest_bits
        logits = watermark(x0)
        each = F.binary_cross_entropy_with_logits(logits, (messages + 1) / 2, reduction="none").mean(1)
        bits = (each * clear).sum() / clear.sum().clamp(min=1)
        figures = {"prior": prior, "bits": bits, "drawn": _drawn(x0 - wanted + delta, delta)}
        if clear.any():
            figures["accuracy"] = accuracy(logits[clear], messages[clear])
        return prior + config.bits_weight * bits, figures

    def _x0(self, output: Tensor, z: Tensor, abar: Tensor) -> Tensor:
        kind = self.pipe.scheduler.config.prediction_type
        if kind == "epsilon":
            return (z - (1 - abar).sqrt() * output) / abar.sqrt()
        return abar.sqrt() * z - (1 - abar).sqrt() * output

    def _caption(self, index: int, rng: np.random.Generator) -> str:
        return "" if rng.random() < self.config.empty_share else caption(random_scene(index))


def _drawn(difference: Tensor, delta: Tensor) -> Tensor:
    """How much of delta is in a difference: its projection, 1 for all of it."""
    return (difference * delta).sum() / (delta**2).sum()


def train_aqualora(
    config: AquaLoraConfig, folder: Path, photos: Path | None = None, stop_after: int | None = None
) -> LatentWatermark | None:
    """Train and save to `folder/model`; None if it was stopped before its end. Photographs are not used."""
    pipe = load_pipeline(config.model)
    latents = encoded(pipe.vae.eval(), folder.parent / "cache", config.scenes)
    first = WatermarkJob(config, latents)
    if not train_stage(first, config.watermark, folder / "watermark", stop_after):
        return None
    job = LoraJob(config, latents, first.model, pipe)
    if not train_stage(job, config.lora, folder / "lora", stop_after):
        return None
    settings = {"bits": config.bits, "rank": config.rank, "rms": config.rms, "model": config.model}
    lora: Any = job.model["lora"]
    save_adapter(folder / "model", first.model, lora, settings)
    return first.model
