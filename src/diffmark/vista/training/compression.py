"""Train the compression autoencoder on crops of scenes and photographs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.vista.compression import CompressionAutoencoder
from diffmark.vista.training.config import LoopConfig
from diffmark.vista.training.data import Picture, painted, photographs, random_crop, to_tensor
from diffmark.vista.training.loop import Chance, train


@dataclass(frozen=True)
class CompressionConfig:
    """A run of `diffmark vista train compression`."""

    loop: LoopConfig
    scenes: int = 4000
    crop: int = 128
    photo_share: float = 0.5
    distortion_weight: float = 400.0  # bits a pixel against mean squared error of images in [-1, 1]
    width: int = 64
    channels: int = 64


class CompressionJob:
    """Rate plus distortion."""

    def __init__(self, config: CompressionConfig, scenes: Picture, photos: list[Picture]) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.model = CompressionAutoencoder(config.width, config.channels)

    def loss(self, step: int, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        crops = [
            random_crop(chance.numpy, self.scenes, self.photos, config.crop, config.photo_share)
            for _ in range(config.loop.batch)
        ]
        x = to_tensor(np.stack(crops))
        y, bits = self.model(x, chance.torch)
        mse = F.mse_loss(y, x)
        loss = bits.mean() + config.distortion_weight * mse
        return loss / config.distortion_weight, {"bits": bits.mean(), "psnr": 10 * torch.log10(4 / mse)}


def train_compression(
    config: CompressionConfig, folder: Path, photos: Path | None, stop_after: int | None = None
) -> CompressionAutoencoder:
    """Train and save to `folder/model`."""
    scenes = painted(folder.parent / "cache", config.scenes)
    job = CompressionJob(config, scenes, photographs(photos) if photos else [])
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    job.model.eval().save_pretrained(folder / "model")
    return job.model
