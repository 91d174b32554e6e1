"""What happens to pictures without anybody meaning harm, plus the simplest edits."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from diffmark.attacks.base import Attack
from diffmark.attacks.distortion import recompress


def resize(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    """Scaled to this factor; the result has another size."""
    return image.resize([max(1, round(side * factor)) for side in image.size], Image.Resampling.BICUBIC)


def screenshot(image: Image.Image, factor: float, rng: np.random.Generator) -> Image.Image:
    """Shown at another size and saved as JPEG 85."""
    return recompress(resize(image, factor, rng), "JPEG", 85)


def social(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    """A sharing site: at most 1080 pixels a side, JPEG, metadata gone."""
    return recompress(
        ImageOps.contain(image, (min(1080, image.width), min(1080, image.height))), "JPEG", quality
    )


def webp(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    return recompress(image, "WEBP", quality)


def avif(image: Image.Image, quality: float, rng: np.random.Generator) -> Image.Image:
    return recompress(image, "AVIF", quality)


def flip(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """Mirrored left to right; there is no half of it."""
    return ImageOps.mirror(image)


def padding(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """A white border, as a share of each side; the result has another size."""
    return ImageOps.expand(image, (round(image.width * share), round(image.height * share)), "white")


def gamma(image: Image.Image, exponent: float, rng: np.random.Generator) -> Image.Image:
    return image.point([round(255 * (level / 255) ** exponent) for level in range(256)] * 3)


def quantise(image: Image.Image, colours: float, rng: np.random.Generator) -> Image.Image:
    """A palette of that many colours, as in a GIF."""
    return image.quantize(round(colours)).convert("RGB")


def caption(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """White letters on a black bar at the bottom, as a share of the height."""
    bar = round(image.height * share)
    marked = image.copy()
    draw = ImageDraw.Draw(marked)
    draw.rectangle((0, image.height - bar, image.width, image.height), "black")
    draw.text((4, image.height - bar), "when you see it", "white", font_size=max(6, round(bar * 0.7)))
    return marked


def sticker(image: Image.Image, share: float, rng: np.random.Generator) -> Image.Image:
    """A coloured disc at a random place, its width a share of the image's smaller side."""
    size = max(1, round(min(image.size) * share))
    x, y = int(rng.integers(image.width - size + 1)), int(rng.integers(image.height - size + 1))
    marked = image.copy()
    ImageDraw.Draw(marked).ellipse((x, y, x + size, y + size), (250, 210, 40), "black")
    return marked


ATTACKS = (
    Attack("resize", "everyday", 0.9, 0.25, "factor", resize),
    Attack("screenshot", "everyday", 1.1, 0.4, "factor", screenshot),
    Attack("social", "everyday", 95, 55, "quality", social),
    Attack("webp", "everyday", 90, 10, "quality", webp),
    Attack("avif", "everyday", 90, 10, "quality", avif),
    Attack("flip", "everyday", 1, 1, "always whole", flip),
    Attack("padding", "everyday", 0, 0.25, "share of each side", padding),
    Attack("gamma", "everyday", 1, 2, "exponent", gamma),
    Attack("quantise", "everyday", 256, 8, "colours", quantise),
    Attack("caption", "everyday", 0.02, 0.2, "share of the height", caption),
    Attack("sticker", "everyday", 0.05, 0.4, "share of the side", sticker),
)
