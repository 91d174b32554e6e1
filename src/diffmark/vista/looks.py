"""Three looks for a painted scene: as a photograph, in oil, in ink. Pictures are (H, W, 3) uint8."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Picture = NDArray[np.uint8]


def photographic(picture: Picture) -> Picture:
    """Film: warm lights and cool shadows, more contrast, bloom around lights, dark corners."""
    image = picture.astype(np.float32) / 255
    bloom = ndimage.gaussian_filter(np.maximum(image - 0.72, 0), (5, 5, 0))
    grey = image.mean(-1, keepdims=True)
    image = grey + (image - grey) * 0.82
    image = image + 0.18 * (image - 0.5) * (1 - np.abs(2 * image - 1)) * 2 + 0.9 * bloom
    image = image * np.where(grey > 0.5, [1.03, 1.0, 0.94], [0.95, 1.0, 1.04])
    return _uint8(image * _vignette(picture.shape[0], picture.shape[1], 0.32))


def oil(picture: Picture) -> Picture:
    """Oil paint: flat strokes by a Kuwahara filter, strong colour, relief of the brush."""
    image = picture.astype(np.float32) / 255
    radius = max(round(picture.shape[0] / 85), 1)
    size = radius + 1
    mean = ndimage.uniform_filter(image, (size, size, 0))
    grey = image.mean(-1)
    variance = ndimage.uniform_filter(grey**2, size) - ndimage.uniform_filter(grey, size) ** 2
    best, strokes = np.full(grey.shape, np.inf, np.float32), image
    for dy in (-1, 1):
        for dx in (-1, 1):
            shift = (dy * radius // 2, dx * radius // 2)
            spread = _shifted(variance, shift)
            flat = spread < best
            best = np.where(flat, spread, best)
            strokes = np.where(flat[..., None], _shifted(mean, shift), strokes)
    tone = strokes.mean(-1, keepdims=True)
    strokes = tone + (strokes - tone) * 1.3
    relief = ndimage.sobel(ndimage.gaussian_filter(grey, 1), 0)[..., None]
    return _uint8(strokes + 0.10 * relief)


def ink(picture: Picture) -> Picture:
    """Ink on warm paper: a wash of greys with a little colour, contours drawn."""
    image = picture.astype(np.float32) / 255
    grey = image @ np.array([0.3, 0.59, 0.11], np.float32)
    wash = ndimage.gaussian_filter(grey, 1.2)
    levels = 0.55 * np.round(wash * 5) / 5 + 0.45 * wash
    edges = np.hypot(ndimage.sobel(wash, 0), ndimage.sobel(wash, 1))
    tone = np.clip(0.12 + 0.88 * levels - 0.55 * np.clip(edges - 0.12, 0, 1), 0, 1)[..., None]
    paper, dark = np.array([0.97, 0.94, 0.87], np.float32), np.array([0.10, 0.11, 0.17], np.float32)
    colour = ndimage.gaussian_filter(image - grey[..., None], (2, 2, 0))
    return _uint8(dark + (paper - dark) * tone + 0.30 * colour)


def _shifted(image: NDArray[np.float32], shift: tuple[int, int]) -> NDArray[np.float32]:
    """Moved by (rows, columns), the edge repeated."""
    rows = np.clip(np.arange(image.shape[0]) - shift[0], 0, image.shape[0] - 1)
    columns = np.clip(np.arange(image.shape[1]) - shift[1], 0, image.shape[1] - 1)
    return image[rows][:, columns]


LOOKS: dict[str, Callable[[Picture], Picture]] = {"photographic": photographic, "oil": oil, "ink": ink}
LOOK_PHRASES = {"photographic": "a photograph of", "oil": "an oil painting of", "ink": "an ink drawing of"}


def _uint8(image: NDArray[np.floating]) -> Picture:
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)


def _vignette(height: int, width: int, strength: float) -> NDArray[np.floating]:
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(-1, 1, width, dtype=np.float32)[None]
    return (1 - strength * ((y**2 + x**2) / 2) ** 1.5)[..., None]
