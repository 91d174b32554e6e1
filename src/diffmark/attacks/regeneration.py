"""Regeneration: the picture is made anew by a model that did not make it (WAVES).

By diffusion: noised and painted again by a surrogate. By compression: through a learned image codec.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from diffmark.attacks.base import Attack, ModelDistort, Rng
from diffmark.latent.bridge import ddim_path, denoiser_of, late_trajectory, noised
from diffmark.latent.families import FAMILIES
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.latent.vae import decode, encode
from diffmark.provenance import weights_digest

STRIDE = 20  # training steps between two denoising steps, as in a run of fifty


class Regeneration(ModelDistort):
    """Regeneration with one surrogate pipeline, the empty prompt (which leaves guidance nothing to do)."""

    def __init__(self, pipe: Any, name: str, rounds: int = 1) -> None:
        self.pipe, self.rounds = pipe, rounds
        self.by, self.weights = name, weights_digest(pipe.unet, pipe.vae)

    @torch.no_grad()
    def batch(self, images: list[Image.Image], value: float, rngs: list[Rng]) -> list[Image.Image]:
        """Noise to `value` of the training steps, denoise; `rounds` times, each from 8-bit images."""
        for _ in range(self.rounds):
            images = self._once(images, value, rngs)
        return images

    def _once(self, images: list[Image.Image], steps: float, rngs: list[Rng]) -> list[Image.Image]:
        pipe = self.pipe
        z0 = encode(pipe.vae, to_pixels(images).to(pipe.device))
        start = steps / pipe.scheduler.config.num_train_timesteps
        trajectory = late_trajectory(pipe.scheduler, max(1, round(steps / STRIDE)), start)
        drawn = np.stack([rng.standard_normal(tuple(z0.shape[1:]), np.float32) for rng in rngs])
        empty = pipe.encode_prompt("", pipe.device, 1, False)[0].expand(len(z0), -1, -1)
        denoise = denoiser_of(pipe.unet, pipe.scheduler, empty)
        shares = np.zeros(len(trajectory.timesteps) + 1)
        noisy = noised(z0, torch.from_numpy(drawn).to(z0), trajectory.abar[0])
        return to_images(decode(pipe.vae, ddim_path(denoise, noisy, None, shares, trajectory)))


class Compression(ModelDistort):
    """Through a learned codec `(pixels in [-1, 1], quality) -> pixels` with sides in multiples of `multiple`."""

    def __init__(self, through: Any, by: str, weights: str, multiple: int) -> None:
        self.through, self.by, self.weights, self.multiple = through, by, weights, multiple

    @torch.no_grad()
    def batch(self, images: list[Image.Image], value: float, rngs: list[Rng]) -> list[Image.Image]:
        pixels = to_pixels(images)
        height, width = pixels.shape[-2:]
        right, below = -width % self.multiple, -height % self.multiple
        padded = F.pad(pixels, (0, right, 0, below), mode="replicate")
        return to_images(self.through(padded, value)[..., :height, :width])


def diffusion_attacks(surrogate: Any, name: str) -> tuple[Attack, ...]:
    """Diffusion once, and twice and four times at half the range, with a surrogate pipeline."""
    unit = "noising steps of 1000"
    return (
        Attack("regen_diffusion", "regeneration", 40, 200, unit, Regeneration(surrogate, name)),
        Attack("rinse_2x", "regeneration", 20, 100, unit, Regeneration(surrogate, name, rounds=2)),
        Attack("rinse_4x", "regeneration", 20, 100, unit, Regeneration(surrogate, name, rounds=4)),
    )


def compression_attack() -> Attack:
    """CompressAI's bmshj2018 where it is installed and its weights are there, else Vista's own codec."""
    distort = _compressai() or _own_codec(FAMILIES["vista"].models().load_compression())
    return Attack("regen_vae", "regeneration", 7, 1, "quality", distort)


def _own_codec(model: Any) -> Compression:
    def through(pixels: Tensor, quality: float) -> Tensor:
        return model(pixels, torch.full((len(pixels),), quality))[0]

    return Compression(through, "Vista's compression autoencoder", weights_digest(model), 16)


def _compressai() -> Compression | None:
    """bmshj2018-factorized; None if it is not installed or its weights are not in torch's cache."""
    try:
        from compressai.zoo.image import bmshj2018_factorized, model_urls
    except ImportError:
        return None
    qualities, cache = range(1, 8), Path(torch.hub.get_dir()) / "checkpoints"
    urls = model_urls["bmshj2018-factorized"]["mse"]
    if not all((cache / Path(urls[quality]).name).is_file() for quality in qualities):
        return None
    models = {quality: bmshj2018_factorized(quality, pretrained=True).eval() for quality in qualities}

    def through(pixels: Tensor, quality: float) -> Tensor:
        return models[round(quality)]((pixels + 1) / 2)["x_hat"] * 2 - 1

    digest = weights_digest(*models.values())
    return Compression(through, "CompressAI bmshj2018-factorized (mse)", digest, 16)
