"""The eight distortions of WAVES, with its parameters."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from diffmark.attacks.base import Attack


def rotation(image: Image.Image, degrees: float, rng: np.random.Generator) -> Image.Image:
    """About the centre, nearest neighbour, black corners."""
    return image.rotate(degrees, Image.Resampling.NEAREST)


def crop(image: Image.Image, area: float, rng: np.random.Generator) -> Image.Image:
    """A random part of the image's own aspect and this share of its area, at its own, smaller size."""
    width, height = image.size
    w, h = max(1, round(width * area**0.5)), max(1, round(height * area**0.5))
    x, y = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
    return image.crop((x, y, x + w, y + h))


def resized_crop(image: Image.Image, area: float, rng: np.random.Generator) -> Image.Image:
    """A random part of this share of the area, resized back."""
    return crop(image, area, rng).resize(image.size, Image.Resampling.BILINEAR)


def erasing(image: Image.Image, area: float, rng: np.random.Generator) -> Image.Image:
    """One black square of this share of the area, at a random place."""
    width, height = image.size
    side = min(round((area * width * height) ** 0.5), width, height)
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    erased = image.copy()
    erased.paste((0, 0, 0), (x, y, x + side, y + side))
    return erased


def brightness(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(factor)


def contrast(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    return ImageEnhance.Contrast(image).enhance(factor)


def blur(image: Image.Image, radius: float, rng: np.random.Generator) -> Image.Image:
    """Gaussian, radius in pixels as WAVES has it at 512 px: on a smaller image it is harsher."""
    return image.filter(ImageFilter.GaussianBlur(radius))


def noise(image: Image.Image, sigma: float, rng: np.random.Generator) -> Image.Image:
    """Gaussian, sigma on a scale of [0, 1]."""
    pixels = np.asarray(image, np.float64) / 255
    noisy = np.clip(pixels + rng.normal(0, sigma, pixels.shape), 0, 1)
    return Image.fromarray(np.rint(noisy * 255).astype(np.uint8))


def jpeg(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    return recompress(image, "JPEG", quality)


def recompress(image: Image.Image, format: str, quality: float) -> Image.Image:
    """Through a file of a lossy format and back."""
    buffer = io.BytesIO()
    image.save(buffer, format, quality=round(quality))
    with Image.open(buffer) as compressed:
        return compressed.convert("RGB")


ATTACKS = (
    Attack("rotation", "distortion", 0, 45, "degrees", rotation),
    Attack("resized_crop", "distortion", 1, 0.5, "share of the area", resized_crop),
    Attack("erasing", "distortion", 0, 0.25, "share of the area", erasing),
    Attack("brightness", "distortion", 1, 2, "factor", brightness),
    Attack("contrast", "distortion", 1, 2, "factor", contrast),
    Attack("blur", "distortion", 0, 20, "radius in pixels", blur),
    Attack("noise", "distortion", 0, 0.1, "sigma", noise),
    Attack("jpeg", "distortion", 90, 10, "quality", jpeg),
)
