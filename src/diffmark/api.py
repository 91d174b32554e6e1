"""The two calls of the pixel layer: `embed` and `detect`."""

from __future__ import annotations

from pathlib import Path

from diffmark.detection.decision import Detection
from diffmark.detection.pixel import PixelDetector
from diffmark.images import ImageLike
from diffmark.pixel.codec import Marked, PixelCodec
from diffmark.pixel.keys import OperatorKey
from diffmark.secret import SecretLike

KeyLike = OperatorKey | bytes | str | Path | None


def embed(image: ImageLike, secret: SecretLike, key: KeyLike = None, quality: float | None = None) -> Marked:
    """A marked copy of an image (path, bytes, PIL, numpy or torch) that carries a 64-bit secret.

    `key` is the operator key: an OperatorKey, 32 bytes, 64 hex digits or a key file; the public key by default.
    `quality` is the SSIMULACRA2 of the copy, by default 80 to 90. `.image` is the picture, and the rest of the
    result says what was reached.
    """
    return PixelCodec(key).embed(image, secret, quality)


def detect(
    image: ImageLike,
    secret: SecretLike | None = None,
    key: KeyLike = None,
    fpr: float = 1e-3,
    search: bool = True,
) -> Detection:
    """What an image carries in the pixel layer: bits, p-value, and a verdict at a false-positive rate.

    With a secret, or several, the p-value is exact. `search` finds turned, cropped, mirrored and framed pictures.
    """
    return PixelDetector(PixelCodec(key), fpr=fpr, search=search).detect(image, secret)
