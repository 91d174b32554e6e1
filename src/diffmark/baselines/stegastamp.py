"""StegaStamp (Tancik et al., 2020): 100 bits in the pixels of a finished image, by an encoder and a decoder that
were trained together through the distortions of printing and photographing.

As in its paper: 100 bits; the secret goes through a dense layer to a small picture that the encoder sees beside
the image; the encoder gives a residual; the decoder sees the distorted image; perspective warp, blur, colour
changes, noise and JPEG in a row, growing from nothing. Deviations, made for one CPU core:
- networks of 0.8 M parameters at 128 pixels (400 in the paper), images are resized for them and the residual is
  enlarged; convolutions run on 8 x 8 patches; a plain network instead of a U-Net, no spatial transformer;
- a thousand steps (140,000 in the paper);
- the size of the residual is set: it falls while training to an RMS that is kept at inference, where the paper
  lets the weights of image losses grow. There is no critic; the perceptual loss is on gradients, not LPIPS;
- no hue shift.
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
from diffmark.baselines.weights import baseline_folder, conv, scaled_to, signs
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.provenance import weights_digest
from diffmark.secret import Bits

SIDE, PATCH = 128, 8  # pixels that the networks see; pixels a feature
GRID = SIDE // PATCH
CHANNELS = 8  # of the dense layer's picture of the secret


class StegaStampNetwork(ModelMixin, ConfigMixin):
    """Encoder and decoder; images (B, 3, 128, 128) in [-1, 1]; `rms` is that of the residual on this scale."""

    @register_to_config
    def __init__(self, bits: int = 100, width: int = 64, rms: float = 0.06) -> None:
        super().__init__()
        patch = 3 * PATCH**2
        self.secret = nn.Linear(bits, CHANNELS * GRID**2)
        self.encoder = nn.Sequential(
            nn.Conv2d(patch + CHANNELS, width, 1),
            conv(width, width),
            conv(width, width),
            nn.Conv2d(width, patch, 1),
        )
        self.decoder = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            nn.Conv2d(patch, width, 1),
            conv(width, width),
            conv(width, width),
            conv(width, 96, stride=2),
            conv(96, 96),
            nn.Conv2d(96, 32, 1),
            nn.Flatten(),
            nn.Linear(8 * GRID**2, bits),
        )
        # Straight linear ways from bits to pixels and back; they are learned at once, and the rest grows on them.
        self.direct = nn.Conv2d(CHANNELS, 3, 1)
        self.correlate = nn.Linear(3 * GRID**2, bits)

    def residual(self, images: Tensor, secrets: Tensor, rms: float | None = None) -> Tensor:
        """What is added to the images for secrets of -1 and 1, (B, bits); (B, 3, 128, 128)."""
        drawn = self.secret(secrets).view(-1, CHANNELS, GRID, GRID)
        seen = torch.cat([F.pixel_unshuffle(images, PATCH), drawn], dim=1)
        fine = F.avg_pool2d(F.pixel_shuffle(self.encoder(seen), PATCH), 3, 1, 1)  # hides the patches' seams
        coarse = F.interpolate(self.direct(drawn), (SIDE, SIDE), mode="bilinear")
        return scaled_to(coarse + fine, rms or float(self.config["rms"]))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the bits, (B, bits)."""
        return self.decoder(images) + self.correlate(F.avg_pool2d(images, PATCH).flatten(1))


class StegaStamp(Method):
    """Marks finished images; every image has a secret of its own."""

    name = "stegastamp"

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or baseline_folder(self.name)
        self.network = StegaStampNetwork.from_pretrained(folder, torch_dtype=torch.float32).eval()
        self.bits = int(self.network.config["bits"])

    @torch.no_grad()
    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        if len(secret) != self.bits:
            raise ValueError(f"secret: {self.name} writes {self.bits} bits, got {len(secret)}")
        pixels = to_pixels([image])
        residual = self.network.residual(to_pixels([image], (SIDE, SIDE)), signs([secret]))
        return to_images(pixels + F.interpolate(residual, pixels.shape[2:], mode="bilinear"))[0]

    @torch.no_grad()
    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        return self.network(to_pixels(images, (SIDE, SIDE))).double().numpy()

    def margins_of(self, pixels: Tensor) -> Tensor:
        return self.network(F.interpolate(pixels, (SIDE, SIDE), mode="area"))

    def parts(self) -> dict[str, tuple[Any, str]]:
        return {"decode": (self.network, "forward")}

    def fingerprint(self) -> dict[str, Any]:
        return {"method": self.name, "weights": weights_digest(self.network)}
