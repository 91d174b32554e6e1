"""Perceptual fingerprints of pictures: PDQ, 256 bits, for pictures whose mark cannot be read any more.

Chosen, with its threshold, on the tune part of the pictures by `benchmarks/fingerprint.py`. Likeness is a weaker
basis than a mark: it is no secret, two different pictures can be alike, and rotations, crops and frames defeat it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.images import ImageLike, read_image

ALGORITHM = "pdq"
THRESHOLD = 21  # bits of 256 that fingerprints of one picture may differ in
SIDE = 64  # of the grey thumbnail that a fingerprint is made of
BORDER_SIDE = 256  # pixels that a picture is shrunk to when its border is looked for
BORDER_LEVELS, BORDER_SHARE = 12, 0.98  # a line of a border: this share of it is so near to its grey
VIEWS = (None, *Image.Transpose)  # a picture is looked up as it comes, turned by right angles, and mirrored

Words = NDArray[np.uint64]


def fingerprint(image: ImageLike) -> Words:
    """The fingerprint of a picture, (4,)."""
    return _hash(thumbnail(read_image(image).image))


def fingerprints(image: ImageLike) -> Words:
    """Those of a picture as it comes, turned by right angles, and mirrored, (8, 4): what is looked up.

    One with a plain border is also looked up without it, (16, 4).
    """
    picture = read_image(image).image
    inner = trimmed(picture)
    thumbs = [thumbnail(picture)] + ([] if inner is None else [thumbnail(inner)])
    views = [thumb if view is None else thumb.transpose(view) for thumb in thumbs for view in VIEWS]
    return np.stack([_hash(view) for view in views])


def thumbnail(image: Image.Image) -> Image.Image:
    """What a fingerprint is made of."""
    return image.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def trimmed(image: Image.Image) -> Image.Image | None:
    """The picture without its plain border, which moves all of a fingerprint; None if it has none."""
    small = image.convert("L")
    small.thumbnail((BORDER_SIDE, BORDER_SIDE))
    grey = np.asarray(small, np.int16)
    top, bottom, left, right = map(_plain, (grey, grey[::-1], grey.T, grey.T[::-1]))
    if not top + bottom + left + right:
        return None
    across, down = image.width / small.width, image.height / small.height
    box = (left * across, top * down, image.width - right * across, image.height - bottom * down)
    return image.crop(tuple(round(value) for value in box))  # type: ignore[arg-type]


def _plain(lines: NDArray[np.int16]) -> int:
    """How many lines from the first on are of one grey; at most a third, so that something is left."""
    most = len(lines) // 3
    alike = np.abs(lines[:most] - np.median(lines[0])) <= BORDER_LEVELS
    other = np.flatnonzero(alike.mean(axis=1) < BORDER_SHARE)
    return int(other[0]) if len(other) else 0  # a third and more of it: no border, but a plain picture


def _hash(thumb: Image.Image) -> Words:
    try:
        import pdqhash
    except ImportError as error:
        raise ImportError(
            "fingerprints need the extra `fingerprint`: pip install 'diffmark[fingerprint]'"
        ) from error
    bits, _ = pdqhash.compute(np.asarray(thumb.convert("RGB")))
    return np.packbits(bits).view(">u8").astype(np.uint64)
