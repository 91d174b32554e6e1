"""Train Vista's autoencoder on crops of scenes and photographs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from diffmark.latent.pictures import from_levels, psnr_of, to_images
from diffmark.metrics import psnr
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.scenes import HELD_OUT
from diffmark.vista.training.data import Picture, painted, photographs, random_crops


@dataclass(frozen=True)
class AutoencoderConfig:
    """A run of `diffmark vista train autoencoder`."""

    loop: LoopConfig
    scenes: int = 4000
    crop: int = 128
    photo_share: float = 0.2  # of a batch; photographs are read from a folder and never shipped
    held_out_photos: int = 50  # the last ones of the folder, for measuring
    gradient_weight: float = 0.5
    mse_weight: float = 2.0
    kl_weight: float = 2e-4
    block_out_channels: tuple[int, int, int, int] = (8, 8, 64, 128)
    layers_per_block: int = 2


class AutoencoderJob:
    """Reconstruction of random crops, with a little pressure towards a standard normal."""

    def __init__(self, config: AutoencoderConfig, scenes: Picture, photos: list[Picture]) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.model = PatchAutoencoder(
            block_out_channels=config.block_out_channels, layers_per_block=config.layers_per_block
        )

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        count = config.loop.batch
        x = random_crops(draws.numpy, self.scenes, self.photos, count, config.crop, config.photo_share)
        posterior = self.model.encode(x).latent_dist
        z = posterior.sample(draws.torch)
        y = self.model.decode(z).sample
        mse = F.mse_loss(y, x)
        kl = 0.5 * (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean()
        loss = F.l1_loss(y, x) + config.gradient_weight * gradient_loss(y, x) + config.mse_weight * mse
        figures = {"psnr": psnr_of(mse), "kl": kl}
        figures |= {"std": posterior.mean.std(), "noise": posterior.std.mean()}
        return loss + config.kl_weight * kl, figures


def gradient_loss(y: Tensor, x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring-pixel differences: keeps edges sharp."""
    d = y - x
    return (d[..., 1:, :] - d[..., :-1, :]).abs().mean() + (d[..., :, 1:] - d[..., :, :-1]).abs().mean()


def train_autoencoder(
    config: AutoencoderConfig, folder: Path, photos: Path | None, stop_after: int | None = None
) -> PatchAutoencoder:
    """Train, set the scaling factor, save to `folder/model`."""
    scenes = painted(folder.parent / "cache", config.scenes)
    pictures = photographs(photos)[: -config.held_out_photos] if photos else []
    job = AutoencoderJob(config, scenes, pictures)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    vae = job.model.eval()
    vae.register_to_config(scaling_factor=scaling_factor(vae, scenes[:200]))
    vae.save_pretrained(folder / "model")
    return vae


@torch.no_grad()
def scaling_factor(vae: PatchAutoencoder, pictures: Picture) -> float:
    """One over the standard deviation of the latents of some pictures."""
    latents = torch.cat(
        [vae.encode(from_levels(part)).latent_dist.mode() for part in np.array_split(pictures, 20)]
    )
    return round(1 / float(latents.std()), 4)


@torch.no_grad()
def reconstruction_psnr(vae: PatchAutoencoder, pictures: Picture | list[Picture]) -> list[float]:
    """PSNR in dB of each picture after encoding, decoding and rounding to 8 bits."""
    values = []
    for picture in pictures:
        (image,) = to_images(vae(from_levels(picture[None])).sample)
        values.append(psnr(image, Image.fromarray(picture)))
    return values


def halved(picture: Picture) -> Picture:
    """A picture at half its size, each pixel the mean of four."""
    height, width = (side // 16 * 8 for side in picture.shape[:2])  # multiples of 8
    blocks = picture[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    return blocks.mean((1, 3)).round().astype(np.uint8)


def evaluate_autoencoder(
    vae: PatchAutoencoder, folder: Path, photos: Path | None, count: int = 200
) -> dict[str, float]:
    """Mean and worst PSNR on unseen scenes, and on held-out photographs at half size if a folder is given."""
    unseen = reconstruction_psnr(vae, painted(folder, count, first_seed=HELD_OUT))
    scores = {"scenes": float(np.mean(unseen)), "scenes_min": min(unseen)}
    if photos:
        held_out = [halved(picture) for picture in photographs(photos)[-AutoencoderConfig.held_out_photos :]]
        values = reconstruction_psnr(vae, held_out)
        scores |= {"photographs": float(np.mean(values)), "photographs_min": min(values)}
    return {name: round(value, 2) for name, value in scores.items()}
