"""Train the decoder of Vista's autoencoder on, with a refinement stage; the encoder stays as it is.

Latents, and with them every denoiser and codec of the family, stay valid: only what pictures look like changes.
Three kinds of latents that a decoder meets are decoded, and the picture that they came from is the target: those of
an encoded picture, with noise on them as a watermark is, and such as the denoiser has made smooth.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from diffmark.latent.pictures import from_levels
from diffmark.latent.vae import decode, encode
from diffmark.provenance import weights_digest
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.paint import PAINTER
from diffmark.vista.scenes import caption, random_scene
from diffmark.vista.training.autoencoder import gradient_loss
from diffmark.vista.training.data import Picture, encoded, painted, photographs, random_crop


@dataclass(frozen=True)
class DecoderConfig:
    """A run of `diffmark vista train decoder`."""

    loop: LoopConfig
    scenes: int = 4000
    crop: int = 128  # pixels, a multiple of 8
    photo_share: float = 0.15  # of a batch
    held_out_photos: int = 50  # the last ones of the folder, for measuring
    denoised_share: float = 0.3  # of the scenes in a batch: latents that the denoiser has made smooth
    denoised_times: tuple[int, int] = (50, 250)  # timesteps that it starts from
    noise: float = 0.2  # the largest standard deviation of noise on scaled latents
    gradient_weight: float = 0.5
    contrast_weight: float = 0.5
    grid_weight: float = 0.5
    latent_weight: float = 1.0  # on squared differences of latents before decoding and after encoding again
    latent_l1_weight: float = 0.0  # on absolute ones, which hold on to small marks as much as to large ones
    refinement_channels: int = 48
    refinement_layers: int = 2


def with_refinement(vae: PatchAutoencoder, channels: int, layers: int) -> PatchAutoencoder:
    """The same autoencoder with an untrained refinement stage, which changes nothing yet."""
    config: Any = vae.config
    own = {name: value for name, value in config.items() if not name.startswith("_")}
    made = PatchAutoencoder(**{**own, "refinement_channels": channels, "refinement_layers": layers})
    missing, unexpected = made.load_state_dict(vae.state_dict(), strict=False)
    if unexpected or any(not name.startswith("refinement.") for name in missing):
        raise ValueError(f"the autoencoder has another decoder: {[*unexpected, *missing][:4]}")
    return made


class DecoderJob:
    """The decoder learns to paint pictures from latents as they come; the encoder says what is left of them."""

    def __init__(
        self,
        config: DecoderConfig,
        vae: PatchAutoencoder,
        scenes: Picture,
        latents: tuple[Tensor, Tensor],
        photos: list[Picture],
    ) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes, self.photos = config, scenes, photos
        self.latents, self.denoised = latents
        self.model = with_refinement(vae, config.refinement_channels, config.refinement_layers)
        for part in (self.model.encoder, self.model.encoder_skip):
            part.requires_grad_(False)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        x, z = self._batch(draws)
        noise = _noise(z.shape, draws.torch)
        z = z + config.noise * torch.rand(len(z), 1, 1, 1, generator=draws.torch) * noise
        y = decode(self.model, z)
        again = encode(self.model, y)
        kept, kept_l1 = F.mse_loss(again, z), F.l1_loss(again, z)
        l1, contrast = F.l1_loss(y, x), contrast_loss(y, x)
        loss = l1 + config.gradient_weight * gradient_loss(y, x) + config.contrast_weight * contrast
        grid = grid_loss(y, x)
        loss = loss + config.grid_weight * grid
        loss = loss + config.latent_weight * kept + config.latent_l1_weight * kept_l1
        return loss, {"l1": l1, "contrast": contrast, "grid": grid, "latents": kept, "latents_l1": kept_l1}

    def _batch(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Pictures (B, 3, crop, crop) and scaled latents of them."""
        config, rng = self.config, draws.numpy
        side = config.crop // 8
        pictures, latents = [], []
        for _ in range(config.loop.batch):
            if self.photos and rng.random() < config.photo_share:
                picture = from_levels(random_crop(rng, self.scenes, self.photos, config.crop, 1.0)[None])
                with torch.no_grad():
                    latent = encode(self.model, picture)
            else:
                index = int(rng.integers(len(self.scenes)))
                y, x = (int(rng.integers(self.latents.shape[-1] - side + 1)) for _ in range(2))
                rows, columns = slice(8 * y, 8 * (y + side)), slice(8 * x, 8 * (x + side))
                picture = from_levels(self.scenes[index, rows, columns][None])
                source = self.denoised if rng.random() < config.denoised_share else self.latents
                latent = source[index : index + 1, :, y : y + side, x : x + side]
            pictures.append(picture)
            latents.append(latent)
        return torch.cat(pictures), torch.cat(latents)


def _noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Noise of standard deviation 1 for latents: white on one half of the batch, coarse on the other."""
    noise = torch.randn(shape, generator=generator)
    half = len(noise) // 2
    coarse = F.avg_pool2d(noise[:half], 3, stride=1, padding=1)
    return torch.cat([3 * coarse, noise[half:]])


def grid_loss(y: Tensor, x: Tensor, side: int = 8) -> Tensor:
    """The gradient loss on the edges between 8 x 8 tiles alone: what is left of tiles."""
    d = y - x
    rows = d[..., side::side, :] - d[..., side - 1 : -1 : side, :]
    columns = d[..., side::side] - d[..., side - 1 : -1 : side]
    return rows.abs().mean() + columns.abs().mean()


def contrast_loss(y: Tensor, x: Tensor) -> Tensor:
    """Mean absolute difference of the local contrast of fine detail: a soft picture has less than it should."""
    return F.l1_loss(_contrast(y), _contrast(x))


def _contrast(x: Tensor) -> Tensor:
    """Standard deviation in 8 x 8 pixels of what is finer than 3 pixels, every 4 pixels."""
    fine = x - F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    return (F.avg_pool2d(fine.square(), 8, stride=4) + 1e-5).sqrt()


@torch.no_grad()
def denoised(pipeline: Any, latents: Tensor, folder: Path, times: tuple[int, int]) -> Tensor:
    """Latents of the scenes 0 ..., noised to a timestep in `times` and denoised at once, kept in `folder`."""
    kind = f"{weights_digest(pipeline.vae, pipeline.unet)[:8]}-{PAINTER}-{len(latents)}-{times[0]}-{times[1]}"
    path = folder / f"denoised-{kind}.npy"
    if not path.exists():
        parts, generator = [], torch.Generator().manual_seed(0)
        signal = pipeline.scheduler.alphas_cumprod
        for start in tqdm(range(0, len(latents), 16), desc="denoising", disable=None):
            z = latents[start : start + 16]
            prompts = [caption(random_scene(start + i)) for i in range(len(z))]
            text = pipeline.encode_prompt(prompts, torch.device("cpu"), 1, False)[0]
            t = torch.randint(*times, (len(z),), generator=generator)
            noisy = pipeline.scheduler.add_noise(z, torch.randn(z.shape, generator=generator), t)
            a = signal[t].view(-1, 1, 1, 1)
            parts.append((noisy - (1 - a).sqrt() * pipeline.unet(noisy, t, text).sample) / a.sqrt())
        partial = path.with_suffix(".partial.npy")
        np.save(partial, torch.cat(parts).half().numpy())
        partial.replace(path)
    return torch.from_numpy(np.load(path)).float()


def train_decoder(
    config: DecoderConfig, folder: Path, pipeline: Any, photos: Path | None, stop_after: int | None = None
) -> PatchAutoencoder:
    """Train the decoder of `pipeline`, an epsilon pipeline, on; save its autoencoder to `folder/model`."""
    cache, vae = folder.parent / "cache", pipeline.vae.eval()
    latents = encoded(vae, cache, config.scenes)
    smooth = denoised(pipeline, latents, cache, config.denoised_times)
    pictures = photographs(photos)[: -config.held_out_photos] if photos else []
    job = DecoderJob(config, vae, painted(cache, config.scenes), (latents, smooth), pictures)
    trained = train(job, config.loop, folder, stop_after)
    # Bit for bit: a moving average of equal values turns a negative zero into a positive one.
    own = {name: value for name, value in vae.state_dict().items() if name.startswith("encoder")}
    job.model.load_state_dict({**trained, **own})
    job.model.eval().save_pretrained(folder / "model")
    return job.model
