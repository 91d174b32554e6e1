"""Train the pixel decoder of a codec: marked pictures in, secrets out.

What delta does to pixels is taken from the measured channel, so a marked picture costs one small convolution and
no autoencoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.codec import Codec
from diffmark.fast import SHRINK, PixelDecoder, save_pixel_decoder
from diffmark.training import losses, robustness
from diffmark.training.channel import Channel
from diffmark.training.lessons import Lessons
from diffmark.vista.training.config import LoopConfig
from diffmark.vista.training.data import to_tensor
from diffmark.vista.training.loop import Chance, train


@dataclass(frozen=True)
class PixelDecoderConfig:
    """A run of `diffmark train pixel-decoder`."""

    loop: LoopConfig
    every: int = 5  # one photograph of so many is held out
    repeats: int = 4  # pictures of a batch that carry the same secret
    strength_start: float = 4.0  # times the codec's own strength, at the first step ...
    strength_end: float = 1.0  # ... and from `strength_steps` on
    strength_steps: int = 150
    attacked_share: float = 0.4  # of the steps
    attacks: tuple[str, ...] = ("jpeg", "noise", "blur", "brightness", "contrast", "resize")
    highest: float = 0.6  # strength of an attack


class PixelDecoderJob:
    """Cross-entropy of the bits on pictures with the mark that the channel predicts."""

    def __init__(self, config: PixelDecoderConfig, codec: Codec, channel: Channel, lessons: Lessons) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.codec, self.channel = config, codec.eval(), channel
        self.model = PixelDecoder(codec.config)
        height, width = self.model.image_size
        if lessons.pictures.shape[1:3] != (height, width):
            raise ValueError(
                f"the pixel decoder reads {height}x{width} pixels, the pictures have another size"
            )
        self.pictures = lessons.pictures

    def loss(self, step: int, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        config, rng = self.config, chance.numpy
        count = config.loop.batch
        drawn = rng.integers(2, size=(count // config.repeats, self.codec.config.length), dtype=np.uint8)
        share = min(step / max(config.strength_steps, 1), 1.0)
        strength = config.strength_start * (config.strength_end / config.strength_start) ** share
        with torch.no_grad():
            mark = strength * mark_in_pixels(self.codec, self.channel, drawn)
            pixels = to_tensor(self._hosts(rng, count)) + mark.repeat(config.repeats, 1, 1, 1)
            if rng.random() < config.attacked_share:
                name = str(rng.choice(config.attacks))
                pixels = robustness.attack(name, pixels, config.highest * rng.random(), chance.torch)
            pixels = robustness.round_to_bytes(pixels)
        secrets = torch.from_numpy(np.tile(drawn, (config.repeats, 1)))
        logits = self.model(pixels)
        loss = losses.cross_entropy(logits, secrets)
        return loss, {
            "accuracy": losses.bit_accuracy(logits, secrets).mean(),
            "strength": torch.tensor(strength),
        }

    def _hosts(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Pictures rolled around their edges, mirrored and transposed."""
        height, width = self.pictures.shape[1:3]
        hosts = []
        for index in rng.integers(len(self.pictures), size=count):
            host = np.roll(self.pictures[index], rng.integers((height, width)), axis=(0, 1))
            host = host[:: rng.choice((-1, 1)), :: rng.choice((-1, 1))]
            hosts.append(host.transpose(1, 0, 2) if rng.random() < 0.5 and height == width else host)
        return np.stack(hosts)


def mark_in_pixels(codec: Codec, channel: Channel, secrets: np.ndarray) -> Tensor:
    """What delta adds to an image at the pixel decoder's size, (B, 3, H, W), as the channel predicts it."""
    full = F.pixel_shuffle(
        F.conv2d(codec.delta(secrets), channel.cost, padding=1), codec.config.pixels_per_latent
    )
    return F.avg_pool2d(full, SHRINK)


def train_pixel_decoder(
    config: PixelDecoderConfig,
    codec: Codec,
    channel: Channel,
    lessons: Lessons,
    folder: Path,
    stop_after: int | None = None,
) -> PixelDecoder:
    """Train in `folder`, from its last state if it has one; `folder/pixel.safetensors` is the result."""
    job = PixelDecoderJob(config, codec, channel, lessons)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    save_pixel_decoder(job.model.eval(), folder)
    return job.model
