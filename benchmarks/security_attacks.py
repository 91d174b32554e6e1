"""Attacks on the pixel layer by somebody who knows everything of it but the operator key.

The attacker knows frame, bands, whitening and mask, and so the coefficients that carry bits (`features`), but not
which bit each belongs to, nor its sign. Estimates of a mark, in these coefficients, are turned into residuals as
the writer would, with a strength in grey levels. Who has the public key has the writer and the reader besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import irfft2, rfft2

from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.keys import PUBLIC_KEY
from diffmark.pixel.layout import Layout, PixelConfig, to_frame
from diffmark.pixel.spectrum import FRAME, forward, inverse, planes, whiten
from diffmark.pixel.tones import COUNT, HIGH, LOW
from diffmark.pixel.writer import add, masking
from diffmark.secret import Bits

Vector = NDArray[np.float32]
BANDS = Layout(PixelConfig(), PUBLIC_KEY).bands  # their coefficients are the same under every key
CHROMA_SHARE = 0.3  # of the strength: chroma is marked more weakly
ERASING = tuple(np.arange(1, 31) / 5)  # grey levels that are tried
NOTCH = 1.2  # cycles: width of the notch at a tone


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
    spectra = np.zeros((3, FRAME * FRAME), np.float32)
    for band, values in zip(
        BANDS, np.split(mark, np.cumsum([len(band.index) for band in BANDS])[:-1]), strict=True
    ):
        spectra[band.plane][band.index] = values
    for plane, share in ((0, 1.0), (1, CHROMA_SHARE), (2, CHROMA_SHARE)):
        wave = inverse(spectra[plane]) * (masking(frame_of(image)[0]) if plane == 0 else 1)
        residual[plane] = wave * (strength * share / max(float(wave.std()), 1e-9))
    return add(image, residual)


# --- what many pictures tell -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """Features (N, D) of pictures that the attacker has seen, and the secrets in them, which only some know."""

    features: NDArray[np.float32]
    secrets: Bits  # (N, L)

    def mean(self, count: int) -> Vector:
        """The estimate of the mark of one secret."""
        return self.features[:count].mean(axis=0)

    def subspace(self, count: int, dimension: int = 64) -> NDArray[np.float32]:
        """Principal directions (K, D) of pictures with different secrets: patterns of bits, if they stand out."""
        rows = self.features[:count] - (self.features[:count].mean(axis=0) if count > 1 else 0)
        values, vectors = np.linalg.eigh((rows @ rows.T).astype(np.float64))
        kept = [i for i in np.argsort(values)[::-1][:dimension] if values[i] > 1e-6 * values[-1]]
        return (vectors[:, kept].T.astype(np.float32) @ rows) / np.sqrt(values[kept, None]).astype(np.float32)

    def patterns(self, count: int) -> NDArray[np.float32]:
        """A decoder fitted to pictures whose secrets are known, (L, D), rows of unit length."""
        signs = 2.0 * self.secrets[:count].astype(np.float32) - 1
        found = signs.T @ self.features[:count]
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def within(directions: NDArray[np.float32], image: Image.Image) -> Vector:
    """The part of an image's features that lies in the span of some directions."""
    return (directions @ features(image)) @ directions


# --- tones -------------------------------------------------------------------------------------------------


def tone_spectrum(image: Image.Image) -> NDArray[np.complex64]:
    """Half spectrum of the whitened frame, every coefficient of at most unit size."""
    found = rfft2(whiten(frame_of(image)[0]))
    return (found / np.maximum(np.abs(found), 1e-9)).astype(np.complex64)


def tones_of(mean: NDArray[np.complex64]) -> NDArray[np.float64]:
    """(COUNT, 2) frequencies (kx, ky) at which phases agree most over many pictures of one key."""
    fy, fx = np.fft.fftfreq(FRAME, 1 / FRAME)[:, None], np.arange(FRAME // 2 + 1)[None]
    radius = np.hypot(fx, fy)
    power = np.where((radius >= LOW) & (radius < HIGH), np.abs(mean), 0)
    found = []
    for _ in range(COUNT):
        row, column = np.unravel_index(int(power.argmax()), power.shape)
        found.append((float(column), float(np.fft.fftfreq(FRAME, 1 / FRAME)[row])))
        rows = np.arange(row - 2, row + 3) % FRAME
        power[np.ix_(rows, np.arange(max(0, column - 2), min(FRAME // 2 + 1, column + 3)))] = 0
    return np.array(found)


def notched(image: Image.Image, frequencies: NDArray[np.float64]) -> Image.Image:
    """The image without what it has at these frequencies of the frame's luma."""
    luma = frame_of(image)[0]
    spectrum = rfft2(luma)
    fy, fx = np.fft.fftfreq(FRAME, 1 / FRAME)[:, None], np.arange(FRAME // 2 + 1)[None]
    keep = np.ones(spectrum.shape, np.float32)
    for kx, ky in frequencies:
        for sign in (1, -1):
            keep *= 1 - np.exp(-((fx - sign * kx) ** 2 + (fy - sign * ky) ** 2) / (2 * NOTCH**2))
    residual = np.zeros((3, FRAME, FRAME), np.float32)
    residual[0] = irfft2(spectrum * keep, (FRAME, FRAME)).astype(np.float32) - luma
    return add(image, residual)


# --- with the key ------------------------------------------------------------------------------------------


def erased(image: Image.Image, codec: PixelCodec) -> Image.Image:
    """White box: the least step against the mark's own gradient that leaves no evidence."""
    margins = codec.read(image, search=False).margins
    own = np.concatenate([band.sign * np.sign(margins)[band.owner] for band in codec.layout.bands])
    for strength in ERASING:
        changed = shifted(image, -own.astype(np.float32), strength)
        if codec.read(changed, search=False).evidence <= 0:
            return changed
    return changed


# --- with a detector to ask --------------------------------------------------------------------------------


def through_oracle(
    image: Image.Image,
    destroyed: list[Image.Image],
    is_marked: Callable[[Image.Image], bool],
    questions: int,
    rng: np.random.Generator,
) -> Image.Image:
    """The picture nearest to `image` that the detector passes, found with so many questions.

    `destroyed` are copies of it that may have lost the mark, best first. First a bisection between the marked
    picture and the first that has; then random parts of the change, in blocks of its spectrum, are taken back as
    long as the detector still sees no mark.
    """
    start = np.asarray(image, np.float32)
    asked = 10 + next((n for n, one in enumerate(destroyed, 1) if not is_marked(one)), len(destroyed))
    change = np.asarray(destroyed[asked - 11], np.float32) - start

    def mixed(spectrum: NDArray[np.complex64]) -> Image.Image:
        back = irfft2(spectrum, start.shape[:2], axes=(0, 1))
        return Image.fromarray(np.clip(np.rint(start + back), 0, 255).astype(np.uint8))

    whole = rfft2(change, axes=(0, 1))
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if is_marked(mixed(middle * whole)) else (low, middle)
    kept = high * whole
    for _ in range(questions - asked):
        height, width = (int(side * rng.uniform(0.05, 0.3)) + 1 for side in kept.shape[:2])
        y, x = int(rng.integers(kept.shape[0])), int(rng.integers(max(1, kept.shape[1] - width)))
        tried = kept.copy()
        tried[np.ix_(np.arange(y, y + height) % kept.shape[0], np.arange(x, x + width))] *= rng.uniform(
            0, 0.8
        )
        if not is_marked(mixed(tried)):
            kept = tried
    return mixed(kept)
