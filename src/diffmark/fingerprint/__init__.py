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
VIEWS = (None, *Image.Transpose)  # a picture is looked up as it comes, turned by right angles, and mirrored

Words = NDArray[np.uint64]


def fingerprint(image: ImageLike) -> Words:
    """The fingerprint of a picture, (4,)."""
    return _hash(_thumbnail(image))


def fingerprints(image: ImageLike) -> Words:
    """Those of a picture as it comes, turned by right angles, and mirrored, (8, 4): what is looked up."""
    thumb = _thumbnail(image)
    return np.stack([_hash(thumb if view is None else thumb.transpose(view)) for view in VIEWS])


def _thumbnail(image: ImageLike) -> Image.Image:
    return read_image(image).image.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def _hash(thumb: Image.Image) -> Words:
    try:
        import pdqhash
    except ImportError as error:
        raise ImportError(
            "fingerprints need the extra `fingerprint`: pip install 'diffmark[fingerprint]'"
        ) from error
    bits, _ = pdqhash.compute(np.asarray(thumb.convert("RGB")))
    return np.packbits(bits).view(">u8").astype(np.uint64)
