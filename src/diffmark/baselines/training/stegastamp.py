"""Train StegaStamp's encoder and decoder on painted scenes and photographs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.baselines.stegastamp import SIDE, StegaStampNetwork
from diffmark.baselines.training.common import accuracy, annealed, picture_batch, random_signs, train_stage
from diffmark.baselines.training.distortions import in_a_row
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig
from diffmark.vista.training.autoencoder import gradient_loss
from diffmark.vista.training.data import Picture, painted, photographs


@dataclass(frozen=True)
class StegaStampConfig:
    """A run of `diffmark baselines train stegastamp`."""

    loop: LoopConfig
    bits: int = 100
    width: int = 64
    scenes: int = 4000
    photo_share: float = 0.3  # of a batch
    first_rms: float = 0.5  # of the residual, pixels in [-1, 1]; falls to `rms` by `quiet_at`
    rms: float = 0.06
    quiet_at: float = 0.5  # share of the run
    distortion_from: float = 0.15  # share of the run where distortions begin; they grow until `quiet_at`
    gradient_weight: float = 0.5


class StegaStampJob:
    """Bits through distortions; the residual is drawn where the picture hides it."""

    def __init__(self, config: StegaStampConfig, scenes: Picture, photos: list[Picture]) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.model = StegaStampNetwork(config.bits, config.width, config.rms)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        done = step / config.loop.steps
        rms = annealed(config.first_rms, config.rms, done / config.quiet_at)
        begun = (done - config.distortion_from) / (config.quiet_at - config.distortion_from)
        x = picture_batch(draws.numpy, self.scenes, self.photos, config.loop.batch, SIDE, config.photo_share)
        secrets = random_signs(config.loop.batch, config.bits, draws.torch)
        y = x + self.model.residual(x, secrets, rms)
        logits = self.model(in_a_row(y, min(max(begun, 0.0), 1.0), draws.torch))
        bits = F.binary_cross_entropy_with_logits(logits, (secrets + 1) / 2)
        # Relative to the size of the residual: only its shape is left to choose.
        shape = gradient_loss(y, x) / rms
        loss = bits + config.gradient_weight * 0.1 * shape
        return loss, {"bits": bits, "accuracy": accuracy(logits, secrets), "shape": shape}


def train_stegastamp(
    config: StegaStampConfig, folder: Path, photos: Path | None, stop_after: int | None = None
) -> StegaStampNetwork | None:
    """Train and save to `folder/model`; None if it was stopped before its end."""
    pictures = photographs(photos) if photos else []
    job = StegaStampJob(config, painted(folder.parent / "cache", config.scenes), pictures)
    if not train_stage(job, config.loop, folder, stop_after):
        return None
    job.model.eval().save_pretrained(folder / "model")
    return job.model
