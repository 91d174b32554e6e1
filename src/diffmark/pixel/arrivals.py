"""How a marked picture may arrive, and what the reader then finds: the copies that the writer fits a mark to.

Each copy is read in its true view: the writer knows it, and the reader's search finds it. A copy's scores of bits
and its responses of tones come from one whitened plane.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from diffmark.pixel.layout import Layout, gains, to_frame
from diffmark.pixel.spectrum import FRAME, Plane, planes, resample, whiten

SMALL = 0.6  # of the frame's side, of the copy that was shrunk
CROP = 75  # pixels of the frame that the cropped copy lacks on each side: half of the area is left
BLUR = 8  # deviation, in pixels of the frame
COPY_JPEG = 75  # quality that a shrunk or cropped copy is saved with

Frame = tuple[NDArray[np.float32], Plane | None]  # planes (3, 512, 512), and where they are present


def as_it_is(image: Image.Image) -> Frame:
    return to_frame(planes(image)), None


def compressed(quality: int) -> Callable[[Image.Image], Frame]:
    """A JPEG of this quality."""
    return lambda image: as_it_is(_jpeg(image, quality))


def shrunk(image: Image.Image) -> Frame:
    """A smaller copy, saved as JPEG."""
    scale = min(1.0, SMALL * FRAME / max(image.size))
    size = (max(8, round(image.width * scale)), max(8, round(image.height * scale)))
    return as_it_is(_jpeg(image.resize(size, Image.Resampling.BICUBIC), COPY_JPEG))


def blurred(image: Image.Image) -> Frame:
    """A copy out of focus."""
    return as_it_is(image.filter(ImageFilter.GaussianBlur(BLUR * max(image.size) / FRAME)))


def cropped(image: Image.Image) -> Frame:
    """The middle half of the area, enlarged to the frame and saved as JPEG, at its place in the frame."""
    x, y = CROP * image.width / FRAME, CROP * image.height / FRAME
    part = (x, y, image.width - x, image.height - y)
    found = planes(_jpeg(image.resize((FRAME, FRAME), Image.Resampling.BICUBIC, part), COPY_JPEG))
    side = FRAME - 2 * CROP
    frame, present = np.zeros((3, FRAME, FRAME), np.float32), np.zeros((FRAME, FRAME), np.float32)
    inside = slice(CROP, CROP + side)
    frame[:, inside, inside] = [resample(plane, (side, side)) for plane in found]
    present[inside, inside] = 1
    return frame, present


def _jpeg(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


PLAIN, HARSH, SHRUNK, CROPPED, BLURRED = "as it is", "JPEG 10", "shrunk", "cropped", "blurred"
COPIES: dict[str, Callable[[Image.Image], Frame]] = {
    PLAIN: as_it_is,
    "JPEG 75": compressed(75),
    "JPEG 25": compressed(25),
    HARSH: compressed(10),
    SHRUNK: shrunk,
    CROPPED: cropped,
    BLURRED: blurred,
}


@dataclass(frozen=True, eq=False)
class Arrived:
    """What a reader who knows the view finds in one copy."""

    scores: NDArray[
        np.float64
    ]  # of every band and bit, in the shares that make one normal score a bit, (K, L)
    white: Plane  # whitened luma, which holds the tones


def arrive(copy: Callable[[Image.Image], Frame], image: Image.Image, layout: Layout) -> Arrived:
    """Read a copy of an image in its true view."""
    frame, present = copy(image)
    white = whiten(frame[0], present)
    scores = layout.scores(frame, present, white)
    weights = gains(scores)
    return Arrived(weights[:, None] * scores / np.linalg.norm(weights), white)
