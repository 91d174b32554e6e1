"""Stable Signature (Fernandez et al., 2023): the autoencoder's decoder is fine-tuned so that every image that it
decodes carries one key of 48 bits, read by a fixed extractor.

As in its paper: 48 bits; a HiDDeN-style extractor is trained first together with an encoder that is then thrown
away, the secret being repeated at every position, through resizing, JPEG, blur and brightness; its outputs on
unmarked images are whitened; then the decoder alone is fine-tuned in about a hundred steps of batch 4 against
the key, with a perceptual loss to the decoder that it was. Deviations, made for one CPU core:
- the extractor works on 4 x 4 patches, 0.1 M parameters, trained for hundreds of steps on 128-pixel parts of
  scenes (300 epochs of COCO in the paper), and has beside it a linear way from the mean of all 8 x 8 cells of
  the image;
- no crops among its distortions: reading off the grid of cells is not learned in so few steps;
- the decoder is fine-tuned through the distortions too, for JPEG's sake (70% of bits at quality 58, 63% without);
- the encoder's residual falls to a set RMS while it is trained, so that the extractor learns to read faint
  marks;
- the perceptual loss is an error weighed by local contrast (contrast masking), not Watson-VGG;
- whitening keeps the axes (the inverse root of the covariance, not its principal axes).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.baselines.base import Method
from diffmark.baselines.weights import baseline_folder, conv
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.provenance import weights_digest
from diffmark.secret import Bits
from diffmark.vista.autoencoder import PatchAutoencoder

CELL = 8  # pixels that the decoder makes of a latent, each way


class Extractor(nn.Module):
    """Images (B, 3, H, W) in [-1, 1], sides multiples of 8, to whitened logits (B, bits)."""

    mean: Tensor
    whitening: Tensor

    def __init__(self, bits: int = 48, width: int = 48) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.PixelUnshuffle(4),
            nn.Conv2d(48, width, 1),
            conv(width, width),
            conv(width, 64, stride=2),
            conv(64, 64),
            nn.Conv2d(64, 64, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, bits),
        )
        self.correlate = nn.Linear(3 * CELL**2, bits)
        self.register_buffer("mean", torch.zeros(bits))
        self.register_buffer("whitening", torch.eye(bits))

    def forward(self, images: Tensor) -> Tensor:
        logits = self.network(images) + self.correlate(mean_cell(images))
        return (logits - self.mean) @ self.whitening

    @torch.no_grad()
    def whiten(self, unmarked: Tensor) -> None:
        """Make logits of unmarked images, (N, bits), uncorrelated and centred, on the scale that they had."""
        covariance = torch.cov(unmarked.T.double())
        values, axes = torch.linalg.eigh(covariance)
        root = axes @ torch.diag((values + 1e-3 * values.mean()).rsqrt()) @ axes.T
        self.whitening.copy_((root * values.mean().sqrt()).to(self.whitening))
        self.mean.copy_(unmarked.mean(dim=0))


def mean_cell(images: Tensor) -> Tensor:
    """The mean of all 8 x 8 cells of an image without its colour, (B, 192)."""
    cells = F.pixel_unshuffle(images, CELL).mean(dim=(2, 3)).view(-1, 3, CELL**2)
    return (cells - cells.mean(dim=2, keepdim=True)).flatten(1)


class SignedDecoder(ModelMixin, ConfigMixin):
    """The extractor, and an autoencoder's decoder that was fine-tuned to `key`, bits of 0 and 1."""

    @register_to_config
    def __init__(
        self,
        key: tuple[int, ...],
        width: int = 48,
        block_out_channels: tuple[int, int, int, int] = (8, 8, 64, 128),
        layers_per_block: int = 2,
    ) -> None:
        super().__init__()
        vae = PatchAutoencoder(block_out_channels=block_out_channels, layers_per_block=layers_per_block)
        self.decoder, self.decoder_skip = vae.decoder, vae.decoder_skip
        self.extractor = Extractor(len(key), width)

    def decode(self, z: Tensor) -> Tensor:
        """Unscaled latents to pixels."""
        return self.decoder(z) + self.decoder_skip(z)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the bits, (B, bits)."""
        return self.extractor(images)


class StableSignature(Method):
    """Every image carries the one key that the decoder was fine-tuned to; another key needs another fine-tuning."""

    name = "stable-signature"

    def __init__(self, pipe: Any, sampling: Sampling | None = None, folder: Path | None = None) -> None:
        self.pipe, self.sampling = pipe, sampling or Sampling()
        folder = folder or baseline_folder(self.name)
        self.network = SignedDecoder.from_pretrained(folder, torch_dtype=torch.float32).eval()
        self.key = np.array(self.network.config["key"], dtype=np.uint8)
        self.bits = len(self.key)
        self.side = CELL * int(pipe.unet.config.sample_size)

    def carried(self, secret: Bits) -> Bits:
        return self.key

    @torch.no_grad()
    def generate(self, spec: ImageSpec) -> Image.Image:
        latents = self.pipe(
            spec.prompt,
            num_inference_steps=self.sampling.steps,
            guidance_scale=self.sampling.guidance,
            generator=torch.Generator("cpu").manual_seed(spec.seed),
            output_type="latent",
        ).images
        return self.finish(latents, self.key[None])[0]

    @torch.no_grad()
    def finish(self, z0: Tensor, secrets: NDArray[np.uint8]) -> list[Image.Image]:
        """Only the decoding differs from that of an unmarked picture."""
        return to_images(self.network.decode(z0 / self.pipe.vae.config.scaling_factor))

    @torch.no_grad()
    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        return self.network(to_pixels(images, (self.side, self.side))).double().numpy()

    def margins_of(self, pixels: Tensor) -> Tensor:
        return self.network(pixels)

    def parts(self) -> dict[str, tuple[Any, str]]:
        return {"decode": (self.network, "forward")}

    def fingerprint(self) -> dict[str, Any]:
        return {"method": self.name, "weights": weights_digest(self.network)}
