"""Train and measure the compression autoencoder on crops of scenes and photographs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffmark.latent.pictures import from_levels, psnr, psnr_of
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.compression import CompressionAutoencoder
from diffmark.vista.scenes import HELD_OUT
from diffmark.vista.training.data import Picture, painted, photographs, random_crops

HELD_OUT_PHOTOS = 40  # the last ones of a folder, which training leaves alone


@dataclass(frozen=True)
class CompressionConfig:
    """A run of `diffmark vista train compression`."""

    loop: LoopConfig
    scenes: int = 4000
    crop: int = 128
    photo_share: float = 0.5
    # A quality each, the worst first: mean squared error of images in [-1, 1] against bits a pixel.
    distortion_weights: tuple[float, ...] = (29.0, 57.0, 109.0, 211.0, 406.0, 785.0, 1515.0)
    width: int = 64
    channels: int = 64


class CompressionJob:
    """Rate plus distortion, every crop at a quality of its own."""

    def __init__(self, config: CompressionConfig, scenes: Picture, photos: list[Picture]) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.model = CompressionAutoencoder(config.width, config.channels, len(config.distortion_weights))
        self.weights = torch.tensor(config.distortion_weights)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        count = config.loop.batch
        x = random_crops(draws.numpy, self.scenes, self.photos, count, config.crop, config.photo_share)
        quality = torch.from_numpy(draws.numpy.integers(0, len(self.weights), len(x)))
        y, bits = self.model(x, quality + 1.0, draws.torch)
        mse = (y - x).square().mean((1, 2, 3))
        loss = (bits / self.weights[quality] + mse).mean()
        return loss, {"bits": bits.mean(), "psnr": psnr_of(mse).mean()}


def train_compression(
    config: CompressionConfig, folder: Path, photos: Path | None, stop_after: int | None = None
) -> CompressionAutoencoder:
    """Train and save to `folder/model`."""
    scenes = painted(folder.parent / "cache", config.scenes)
    taken = photographs(photos)[:-HELD_OUT_PHOTOS] if photos else []
    job = CompressionJob(config, scenes, taken)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    job.model.eval().save_pretrained(folder / "model")
    return job.model


@torch.no_grad()
def evaluate_compression(
    model: CompressionAutoencoder, folder: Path, photos: Path | None, count: int = 100
) -> list[dict[str, float]]:
    """PSNR and bits a pixel of every quality, on unseen scenes and on held-out photographs at half size."""
    pictures = {"scenes": list(painted(folder, count, first_seed=HELD_OUT))}
    if photos:
        pictures["photographs"] = [picture[::2, ::2] for picture in photographs(photos)[-HELD_OUT_PHOTOS:]]
    rows = []
    for quality in range(1, model.qualities + 1):
        row: dict[str, float] = {"quality": quality}
        for name, chosen in pictures.items():
            found = [_passed_through(model, picture, quality) for picture in chosen]
            row |= {f"{name}_psnr": round(float(np.mean([f[0] for f in found])), 2)}
            row |= {f"{name}_bits_a_pixel": round(float(np.mean([f[1] for f in found])), 4)}
        rows.append(row)
    return rows


def _passed_through(model: CompressionAutoencoder, picture: Picture, quality: float) -> tuple[float, float]:
    """PSNR in dB and bits a pixel of one picture (H, W, 3)."""
    x = from_levels(picture[None, : picture.shape[0] // 16 * 16, : picture.shape[1] // 16 * 16])
    y, bits = model(x, torch.tensor([float(quality)]))
    return float(psnr(y.clamp(-1, 1), x)), float(bits)
