"""Distortions one after the other: WAVES's combinations, and the ways that pictures take.

As in WAVES, a combination applies its parts at the same strength: geometric (rotation, crop, erasing), photometric
(brightness, contrast), degradation (blur, noise, JPEG), or all of them. A chain is what happens between two people.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageOps

from diffmark.attacks import distortion
from diffmark.attacks.base import Attack
from diffmark.attacks.distortion import crop, recompress
from diffmark.attacks.everyday import caption, resize

PARTS = {part.name: part for part in distortion.ATTACKS}
GEOMETRIC, PHOTOMETRIC = ("rotation", "resized_crop", "erasing"), ("brightness", "contrast")
DEGRADATION = ("blur", "noise", "jpeg")

Image_ = Image.Image
Random = np.random.Generator


def in_a_row(names: tuple[str, ...]) -> Callable[[Image_, float, Random], Image_]:
    """Distortions of WAVES, all at one strength."""

    def distort(image: Image_, strength: float, rng: Random) -> Image_:
        for name in names:
            image = PARTS[name].distort(image, PARTS[name].value(strength), rng)
        return image

    return distort


def messenger(image: Image_, quality: float, rng: Random) -> Image_:
    """Sent on twice: made smaller and compressed, enlarged again, compressed anew by the next one."""
    small = resize(recompress(resize(image, 0.75, rng), "JPEG", quality), 1 / 0.75, rng)
    return recompress(small, "WEBP", quality)


def repost(image: Image_, area: float, rng: Random) -> Image_:
    """Cropped to taste, made a little brighter, with a caption, saved as JPEG 75."""
    cropped = ImageEnhance.Brightness(crop(image, area, rng)).enhance(1.1)
    return recompress(caption(cropped, 0.1, rng), "JPEG", 75)


def framed_screenshot(image: Image_, share: float, rng: Random) -> Image_:
    """A window shown on a screen: bars above and below, margins, another size, JPEG 85."""
    border = round(share * min(image.size))
    framed = ImageOps.expand(image, (border, 2 * border, border, border), (245, 245, 247))
    draw = ImageDraw.Draw(framed)
    for x in range(3):
        draw.ellipse(
            (border * (0.6 + 0.5 * x), border * 0.8, border * (0.9 + 0.5 * x), border * 1.1), (200, 90, 80)
        )
    return recompress(resize(framed, float(rng.uniform(0.8, 1.1)), rng), "JPEG", 85)


def print_photo(image: Image_, amount: float, rng: Random) -> Image_:
    """Printed and photographed, simulated: the lens's blur, uneven light, ink, moire, perspective, noise, JPEG 80.

    `amount` from 0 to 1 scales all of them; corners move by up to 8% of the side.
    """
    width, height = image.size
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(0.8 * amount)), np.float64) / 255
    y, x = np.mgrid[0:height, 0:width]
    turn, phase = rng.uniform(0, 2 * np.pi, 2)
    across = (np.cos(turn) * (x / width - 0.5) + np.sin(turn) * (y / height - 0.5))[..., None]
    paper = 0.08 * amount + (1 - 0.16 * amount) * pixels  # ink is not black, paper not white
    lit = paper * (1 + 0.4 * amount * across) * np.array([1, 1 - 0.04 * amount, 1 - 0.1 * amount])
    waves = np.sin(2 * np.pi * (x * np.cos(phase) + y * np.sin(phase)) / rng.uniform(2.2, 3.5))[..., None]
    noisy = lit + 0.03 * amount * waves + rng.normal(0, 0.02 * amount, pixels.shape)
    photo = Image.fromarray(np.rint(noisy.clip(0, 1) * 255).astype(np.uint8))
    corners = np.array([[0, 0], [0, height], [width, height], [width, 0]], np.float64)
    seen = corners + rng.uniform(-0.08, 0.08, (4, 2)) * amount * (width, height)
    grey = (96, 92, 88)
    warped = photo.transform(
        image.size,
        Image.Transform.PERSPECTIVE,
        _perspective(corners, seen),
        Image.Resampling.BICUBIC,
        fillcolor=grey,
    )
    return recompress(warped, "JPEG", 80)


def _perspective(target: np.ndarray, source: np.ndarray) -> list[float]:
    """Pillow's eight numbers of the map from places in the result to places in the picture."""
    rows, right = [], []
    for (x, y), (u, v) in zip(target, source, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    return [float(value) for value in np.linalg.solve(np.array(rows), np.array(right))]


ATTACKS = (
    Attack("geometric", "combined", 0, 1, "strength of each", in_a_row(GEOMETRIC)),
    Attack("photometric", "combined", 0, 1, "strength of each", in_a_row(PHOTOMETRIC)),
    Attack("degradation", "combined", 0, 1, "strength of each", in_a_row(DEGRADATION)),
    Attack("combined", "combined", 0, 1, "strength of each", in_a_row(GEOMETRIC + PHOTOMETRIC + DEGRADATION)),
    Attack("quarter_crop", "everyday", 1, 0.25, "share of the area", crop),
    Attack("messenger", "everyday", 90, 30, "quality", messenger),
    Attack("repost", "everyday", 1, 0.5, "share of the area", repost),
    Attack("framed_screenshot", "everyday", 0.02, 0.15, "share of the side", framed_screenshot),
    Attack("print_photo", "everyday", 0, 1, "amount", print_photo),
)
