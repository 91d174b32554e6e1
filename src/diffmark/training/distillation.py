"""A small autoencoder for another model's latent space: the embedded family's patch architecture, distilled.

The teacher encodes crops of photographs, and of pictures it made itself, once. The student's encoder learns those
latents, and its decoder to make the picture of them; it carries no weights of the teacher and needs it no more
afterwards.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.provenance import command_line, provenance
from diffmark.training.family_publication import TRAINING_FILE
from diffmark.training.lessons import Lessons, make_lessons
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.training.autoencoder import gradient_loss
from diffmark.vista.training.config import LoopConfig
from diffmark.vista.training.data import to_tensor
from diffmark.vista.training.loop import Chance, seconds_of, train


@dataclass(frozen=True)
class DistillationConfig:
    """A run of `diffmark train distil`."""

    loop: LoopConfig
    channels: int
    every: int = 5  # one photograph of so many is held out
    crop: int = 128
    noise: float = 0.05  # of the latents that the decoder sees, so that it is smooth around them
    latent_weight: float = 2.0
    gradient_weight: float = 0.5
    mse_weight: float = 2.0
    block_out_channels: tuple[int, int, int, int] = (8, 8, 64, 128)
    layers_per_block: int = 2


class DistillationJob:
    """Latents as the teacher's, pictures as they were."""

    def __init__(self, config: DistillationConfig, lessons: Lessons, start: nn.Module | None = None) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.lessons = config, lessons
        self.model = PatchAutoencoder(
            latent_channels=config.channels,
            block_out_channels=config.block_out_channels,
            layers_per_block=config.layers_per_block,
            sample_size=512,
        )
        if start is not None:
            copy_fitting(start, self.model)

    def loss(self, step: int, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, chance.numpy
        side, small = config.crop // 8, self.lessons.latents.shape[-1]
        pictures, latents = [], []
        for index in rng.integers(len(self.lessons.pictures), size=config.loop.batch):
            y, x = rng.integers(small - side + 1, size=2)
            pictures.append(self.lessons.pictures[index, 8 * y : 8 * (y + side), 8 * x : 8 * (x + side)])
            latents.append(self.lessons.latents[index, :, y : y + side, x : x + side])
        pixels = to_tensor(np.stack(pictures))
        z = torch.from_numpy(np.stack(latents)).float()
        student = self.model.encode(pixels).latent_dist.mode()
        noisy = z + config.noise * torch.randn(z.shape, generator=chance.torch)
        made = self.model.decode(noisy).sample
        # The teacher saw beyond the crop, the student does not: the outermost latents are not compared.
        inner = F.mse_loss(student[..., 1:-1, 1:-1], z[..., 1:-1, 1:-1])
        mse = F.mse_loss(made, pixels)
        loss = (
            F.l1_loss(made, pixels)
            + config.gradient_weight * gradient_loss(made, pixels)
            + config.mse_weight * mse
            + config.latent_weight * inner
        )
        return loss, {"psnr": 10 * torch.log10(4 / mse), "latent_error": inner, "latent_power": z.var()}


def copy_fitting(source: nn.Module, target: nn.Module) -> int:
    """Take over the weights that have the same name and shape; returns how many tensors those are."""
    own = target.state_dict()
    fitting = {n: v for n, v in source.state_dict().items() if n in own and own[n].shape == v.shape}
    target.load_state_dict({**own, **fitting})
    return len(fitting)


def distil(
    config: DistillationConfig,
    teacher: nn.Module,
    photographs: Path,
    folder: Path,
    cache: Path,
    start: nn.Module | None = None,
    stop_after: int | None = None,
) -> PatchAutoencoder:
    """Train in `folder`, from its last state if it has one; the model is in `folder/model`."""
    lessons = make_lessons(teacher, photographs, config.every, cache, generated=True)
    job = DistillationJob(config, lessons, start)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    model = job.model.eval()
    model.save_pretrained(folder / "model")
    took = {"seconds": seconds_of(folder), "threads": torch.get_num_threads()}
    made_by = provenance(command_line(), asdict(config)) | took
    (folder / "model" / TRAINING_FILE).write_text(json.dumps(made_by, indent=2) + "\n")
    return model
