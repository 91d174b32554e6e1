"""Measure a codec on a user's own model and pictures, and calibrate it there.

For injection mode `final` only the model's autoencoder matters: pictures are encoded, marked and decoded as at the
end of a pipeline, written as 8-bit images and read back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from diffmark import statistics
from diffmark.calibration import Calibration, evidence
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.images import ImageLike, read_image
from diffmark.latent_marks import delta_at_z0
from diffmark.provenance import weights_digest
from diffmark.vae import decode, encode, own_vae

SMALLEST_CROP = 0.5  # of each side; crops are unmarked images too


@torch.no_grad()
def calibrate(
    codec: Codec, vae: nn.Module, images: Iterable[ImageLike], crops: int = 4, seed: int = 0
) -> Calibration:
    """Bit accuracy and PSNR of marked pictures, false positives of unmarked ones, as the codec's calibration.

    Each image gives one marked picture and, unmarked, itself, its round trip through the autoencoder, and `crops`.
    """
    if codec.config.injection.mode != "final":
        raise ValueError(
            f"the codec's injection mode is {codec.config.injection.mode!r}, which goes through a denoiser; "
            "only mode 'final' can be measured with pictures alone"
        )
    detector = Detector(codec, vae)
    size, length = codec.config.image_size, codec.config.length
    share = float(codec.config.injection.weights([0.0])[-1])
    own = own_vae(codec, vae, next(vae.parameters()).device)
    right, ratios, negatives = [], [], []
    for number, image in enumerate(images):
        picture = read_image(image)
        rng = np.random.default_rng([seed, number])
        secret = rng.integers(2, size=(1, length), dtype=np.uint8)
        z = encode(
            vae, torch.from_numpy(picture.resized(size).pixels())[None].to(next(vae.parameters()).device)
        )
        clean = _eight_bits(decode(vae, z))
        marked = _eight_bits(decode(vae, z + share * delta_at_z0(codec, vae, z, secret, share, own)))
        ratios.append(10 * math.log10(4 / max(float((marked - clean).square().mean()), 1e-12)))
        right.append(int(((_margins(detector, marked)[0] > 0) == secret[0]).sum()))
        parts = [random_crop(picture.image, rng) for _ in range(crops)]
        unmarked = [
            torch.from_numpy(read_image(part).resized(size).pixels()) for part in (picture.image, *parts)
        ]
        negatives.append(_margins(detector, torch.cat([torch.stack(unmarked), clean.cpu()])))
    if not right:
        raise ValueError("there are no images to calibrate on")
    margins = np.concatenate(negatives)
    figures = _figures(right, ratios, margins, length, seed)
    kind = codec.config.evidence
    return Calibration.measure(evidence(margins, kind), figures, weights_digest(vae, half=True), kind)


def _figures(
    right: list[int], ratios: list[float], margins: np.ndarray, length: int, seed: int
) -> dict[str, Any]:
    matches = np.asarray(right)
    threshold = statistics.match_threshold(length, 1e-3)
    secrets = np.random.default_rng([seed, 2**31]).integers(2, size=margins.shape)
    false = int((((margins > 0) == secrets).sum(axis=1) >= threshold).sum())
    return {
        "marked": len(right),
        "bit_accuracy": round(float(matches.mean() / length), 4),
        "psnr": round(float(np.mean(ratios)), 2),
        "tpr_at_0.001": round(float((matches >= threshold).mean()), 4),
        "unmarked": len(margins),
        "false_positives_at_0.001": false,
        "false_positive_rate_95": [round(x, 5) for x in statistics.clopper_pearson(false, len(margins))],
    }


def _margins(detector: Detector, pixels: Tensor) -> np.ndarray:
    logits = np.concatenate([detector.logits(part) for part in pixels.split(detector.batch_size)])
    return logits[..., 1] - logits[..., 0]


def _eight_bits(pixels: Tensor) -> Tensor:
    return ((pixels.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def random_crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A part anywhere, of half the sides to all of them, in the aspect of the whole."""
    share = rng.uniform(SMALLEST_CROP, 1)
    width, height = max(round(share * image.width), 1), max(round(share * image.height), 1)
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.crop((left, top, left + width, top + height))
