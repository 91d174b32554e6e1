"""Train the pixel encoder of a codec, which stands for an autoencoder's where reading has to be fast.

It learns from photographs marked as `diffmark embed` marks them: what the codec's own autoencoder makes of them at
full size, whitened, and the bits that the codec's decoder reads in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from diffmark.codec import Codec, whiten
from diffmark.embedding import embed
from diffmark.fast import PixelDecoder, save_pixel_decoder
from diffmark.images import read_image
from diffmark.training import losses, robustness
from diffmark.training.photographs import centre_square
from diffmark.vae import encode
from diffmark.vista.training.config import LoopConfig
from diffmark.vista.training.data import to_tensor
from diffmark.vista.training.loop import Chance, train


@dataclass(frozen=True)
class PixelDecoderConfig:
    """A run of `diffmark train pixel-decoder`."""

    loop: LoopConfig
    every: int = 5  # one photograph of so many is held out
    pictures: int = 200  # that are marked, each with a secret of its own
    bits_weight: float = 1.0  # of the bits' cross-entropy beside the error of latents
    attacked_share: float = 0.4  # of the steps
    attacks: tuple[str, ...] = ("jpeg", "noise", "blur", "brightness", "contrast", "resize")
    highest: float = 0.6  # strength of an attack


@dataclass(frozen=True)
class Examples:
    """Marked pictures at half size (N, H, W, 3) uint8, whitened latents (N, C, h, w) and secrets (N, L) of each."""

    pictures: np.ndarray
    latents: Tensor
    secrets: Tensor


@torch.no_grad()
def make_examples(codec: Codec, vae: nn.Module, paths: Sequence[Path], seed: int) -> Examples:
    """Photographs marked at the codec's native size."""
    rng = np.random.default_rng(seed)
    secrets = rng.integers(2, size=(len(paths), codec.config.length), dtype=np.uint8)
    full, half = codec.config.image_size, PixelDecoder(codec).image_size
    pictures, latents = [], []
    for path, secret in zip(tqdm(paths, "marking", disable=None), secrets, strict=True):
        image = embed(Image.fromarray(centre_square(path, full[0])), codec, vae, secret)
        picture = read_image(image).resized(full)
        latents.append(whiten(encode(vae, torch.from_numpy(picture.pixels())[None])))
        pictures.append(np.asarray(picture.resized(half).image))
    return Examples(np.stack(pictures), torch.cat(latents), torch.from_numpy(secrets))


class PixelDecoderJob:
    """The error of whitened latents, and the bits' cross-entropy, on marked and attacked pictures."""

    def __init__(self, config: PixelDecoderConfig, codec: Codec, examples: Examples) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.codec, self.examples = config, codec.eval().requires_grad_(False), examples
        self.model = PixelDecoder(codec).encoder

    def loss(self, step: int, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, chance.numpy
        rows = rng.integers(len(self.examples.pictures), size=config.loop.batch)
        pixels = to_tensor(self.examples.pictures[rows])
        if rng.random() < config.attacked_share:
            name = str(rng.choice(config.attacks))
            pixels = robustness.attack(name, pixels, config.highest * rng.random(), chance.torch)
            pixels = robustness.round_to_bytes(pixels)
        latents = self.model(pixels)
        logits, secrets = self.codec.decoder(latents), self.examples.secrets[rows]
        error = F.mse_loss(whiten(latents), self.examples.latents[rows])
        loss = error + config.bits_weight * losses.cross_entropy(logits, secrets)
        return loss, {"error": error, "accuracy": losses.bit_accuracy(logits, secrets).mean()}


def train_pixel_decoder(
    config: PixelDecoderConfig, codec: Codec, examples: Examples, folder: Path, stop_after: int | None = None
) -> PixelDecoder:
    """Train in `folder`, from its last state if it has one; `folder/pixel.safetensors` is the result."""
    job = PixelDecoderJob(config, codec, examples)
    decoder = PixelDecoder(codec)
    decoder.encoder.load_state_dict(train(job, config.loop, folder, stop_after))
    save_pixel_decoder(decoder, folder)
    return decoder.eval()
