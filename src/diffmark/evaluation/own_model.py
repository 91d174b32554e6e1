"""Measure a codec on a user's own model and pictures, and calibrate it there.

For injection mode `final` only the model's autoencoder matters: pictures are encoded, marked and decoded as at the
end of a pipeline, written as 8-bit images and read back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from diffmark import statistics
from diffmark.attacks.distortion import crop
from diffmark.detection.latent import Detector
from diffmark.images import ImageLike, read_image
from diffmark.latent.calibration import Calibration
from diffmark.latent.codec import Codec
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.latent.vae import decode, encode
from diffmark.mark.latents import mark_latents
from diffmark.metrics import psnr
from diffmark.provenance import weights_digest

LEVEL = 100.0  # dB that pictures without any difference count as
OTHERS = 2  # unmarked images of a picture beside its crops: itself and its round trip
MIN_CROP = 0.5  # of each side, up to the whole; crops are unmarked images too


@torch.no_grad()
def calibrate(
    codec: Codec,
    vae: nn.Module,
    images: Iterable[ImageLike],
    crops: int = 4,
    seed: int = 0,
    size: tuple[int, int] | None = None,
) -> Calibration:
    """Bit accuracy and PSNR of marked pictures, false positives of unmarked ones, as the codec's calibration.

    Each image gives one marked picture and, unmarked, itself, its round trip through the autoencoder, and `crops`.
    Marked picture and round trip have the (height, width) that the model generates; the codec's own by default.
    """
    if codec.injection.mode != "final":
        raise ValueError(
            f"the codec's injection mode is {codec.injection.mode!r}, which goes through a denoiser; "
            "only mode 'final' can be measured with pictures alone"
        )
    size = size or codec.config.image_size
    cell = codec.config.pixels_per_latent
    if any(side < 1 or side % cell for side in size):
        raise ValueError(f"height and width must be multiples of {cell}, got {size[0]}x{size[1]}")
    detector = Detector(codec, vae)
    share = float(codec.injection.weights([0.0])[-1])
    place = next(vae.parameters()).device
    right, ratios, negatives = [], [], []
    for number, image in enumerate(images):
        picture = read_image(image)
        rng = np.random.default_rng([seed, number])
        secret = rng.integers(2, size=(1, codec.config.length), dtype=np.uint8)
        z = encode(vae, torch.from_numpy(picture.resized(size).pixels())[None].to(place))
        clean = _as_image(decode(vae, z))
        marked = _as_image(decode(vae, mark_latents(codec, z, secret, share)))
        ratios.append(psnr(marked, clean))
        right.append(int(((_margins(detector, [marked])[0] > 0) == secret[0]).sum()))
        parts = [crop(picture.image, rng.uniform(MIN_CROP, 1) ** 2, rng) for _ in range(crops)]
        negatives.append(_margins(detector, [picture, *parts, clean]))
    if not right:
        raise ValueError("there are no images to calibrate on")
    margins = np.concatenate(negatives)
    figures = {"size": list(size), **_figures(right, ratios, margins, codec.config.length, seed)}
    return Calibration.of_margins(margins, figures, weights_digest(vae, half=True))


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
        "psnr": round(float(np.minimum(ratios, LEVEL).mean()), 2),
        "tpr_at_0.001": round(float((matches >= threshold).mean()), 4),
        "unmarked": len(margins),
        "false_positives_at_0.001": false,
        "false_positive_rate_95": [round(x, 5) for x in statistics.clopper_pearson(false, len(margins))],
    }


def _margins(detector: Detector, images: Sequence[ImageLike]) -> np.ndarray:
    """(B, L), of pictures of any size."""
    parts = to_pixels(images, detector.image_size).split(detector.batch_size)
    return np.concatenate([detector.raw_margins(part) for part in parts])


def _as_image(pixels: Tensor) -> Image.Image:
    """The first of pixels (B, 3, H, W) in [-1, 1], in 8 bits."""
    if not pixels.isfinite().all():
        raise ValueError("the autoencoder gives values that are not finite: is its precision too low?")
    return to_images(pixels[:1])[0]
