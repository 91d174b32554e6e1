"""What somebody computes who knows everything of the pixel layer but the operator key.

He knows frame, bands, whitening and mask, and so the coefficients that carry bits (`features`), but not which bit
each belongs to, nor its sign. Estimates of a mark, in these coefficients, become residuals as the writer's do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.pixel.keys import PUBLIC_KEY
from diffmark.pixel.layout import Layout, PixelConfig, to_frame
from diffmark.pixel.spectrum import FRAME, forward, inverse, planes, whiten
from diffmark.pixel.writer import add, masking
from diffmark.secret import Bits

Vector = NDArray[np.float32]
BANDS = Layout(PixelConfig(), PUBLIC_KEY).bands  # their coefficients are the same under every key
CHROMA_SHARE = 0.3  # of the strength: chroma is marked more weakly


def frame_of(image: Image.Image) -> NDArray[np.float32]:
    """Luma and chroma at the frame's size, (3, 512, 512)."""
    return to_frame(planes(image))


def features(image: Image.Image) -> Vector:
    """All coefficients that may carry bits, each ring at unit deviation, (D,)."""
    frame = frame_of(image)
    transforms = [forward(whiten(frame[0])), *(forward(plane - plane.mean()) for plane in frame[1:])]
    return np.concatenate([band.coefficients(transforms[band.plane]) for band in BANDS]).astype(np.float32)


def shifted(image: Image.Image, mark: Vector, strength: float) -> Image.Image:
    """The image with a mark in feature coordinates added: luma at `strength` levels RMS under the writer's mask."""
    residual = np.zeros((3, FRAME, FRAME), np.float32)
    transforms = np.zeros((3, FRAME * FRAME), np.float32)
    ends = np.cumsum([len(band.index) for band in BANDS])[:-1]
    for band, values in zip(BANDS, np.split(mark, ends), strict=True):
        transforms[band.plane][band.index] = values
    for plane, part in ((0, 1.0), (1, CHROMA_SHARE), (2, CHROMA_SHARE)):
        wave = inverse(transforms[plane].reshape(FRAME, FRAME)) * (
            masking(frame_of(image)[0]) if plane == 0 else 1
        )
        residual[plane] = wave * (strength * part / max(float(wave.std()), 1e-9))
    return add(image, residual)


def principal(rows: NDArray[np.float32], dimension: int) -> NDArray[np.float32]:
    """Principal directions (K, D), not centred: patterns of bits, if they stand out of other pictures' detail."""
    values, vectors = np.linalg.eigh((rows @ rows.T).astype(np.float64))
    kept = [i for i in np.argsort(values)[::-1][:dimension] if values[i] > 1e-6 * values[-1]]
    return (vectors[:, kept].T.astype(np.float32) @ rows) / np.sqrt(values[kept, None]).astype(np.float32)


def fitted(rows: NDArray[np.float32], secrets: Bits) -> NDArray[np.float32]:
    """A linear decoder fitted to pictures whose secrets are known, (L, D), rows of unit length."""
    found = (2.0 * secrets.astype(np.float32) - 1).T @ rows
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def within(directions: NDArray[np.float32], image: Image.Image) -> Vector:
    """The part of an image's features that lies in the span of some directions."""
    return (directions @ features(image)) @ directions
