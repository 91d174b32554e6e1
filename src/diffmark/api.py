"""The two calls of the pixel layer: `embed` and `detect`."""

from __future__ import annotations

from diffmark.detection.decision import Detection
from diffmark.detection.pixel import PixelDetector
from diffmark.images import ImageLike
from diffmark.keys.ring import RingLike, as_ring
from diffmark.pixel.codec import Marked, PixelCodec
from diffmark.secret import SecretLike


def embed(image: ImageLike, secret: SecretLike, key: RingLike = None, quality: float | None = None) -> Marked:
    """A marked copy of an image (path, bytes, PIL, numpy or torch) that carries a 64-bit secret.

    `key` is the operator key: an OperatorKey, 32 bytes, 64 hex digits, a key file or "public"; by default the
    operator's own (`diffmark key show`), or where there is none the public one.
    `quality` is the SSIMULACRA2 of the copy, by default 80 to 90. `.image` is the picture, and the rest of the
    result says what was reached.
    """
    return PixelCodec(as_ring(key).current).embed(image, secret, quality)


def detect(
    image: ImageLike,
    secret: SecretLike | None = None,
    key: RingLike = None,
    fpr: float = 1e-3,
    search: bool = True,
) -> Detection:
    """What an image carries in the pixel layer: bits, p-value, and a verdict at a false-positive rate.

    With a secret, or several, the p-value is exact; every key of a ring is a try. `search` finds turned, cropped,
    mirrored and framed pictures.
    """
    return PixelDetector(as_ring(key), fpr=fpr, search=search).detect(image, secret)
