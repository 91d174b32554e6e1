"""The writer of the pixel layer: a mark fitted to its picture, no stronger than it has to be, never plainly seen.

The residual that is added to a picture is, in luma,

    r = mask * (gain * sum_k w_k sum_b a_b sigma_b P_kb + sum_t c_t tone_t),

with P_kb the pattern of bit b in band k, sigma_b = +-1 the bit, w_k the density of the mark in band k, and a mask
of local activity; chroma bands have no mask. The tones' amplitudes c_t are fitted so that each stands out of the
marked picture. The gain is fitted to the picture as it may arrive, after a harsh JPEG, within two bounds of
visibility. The amplitudes a_b are 1, and more for bits that the picture speaks against.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scipy.ndimage import minimum_filter

from diffmark.pixel.layout import Layout, gains, to_frame
from diffmark.pixel.spectrum import FRAME, Box, Plane, box, inverse, planes, resample, whiten
from diffmark.pixel.visibility import Visibility
from diffmark.secret import Bits

Residual = NDArray[np.float32]  # (3, 512, 512): luma, blue, red chroma, in levels of 0 ... 255

MIN_QUALITY, MAX_QUALITY = 80.0, 90.0  # SSIMULACRA2: no worse, and no better than a mark that is easy to read
ARRIVAL_JPEG = 10  # quality of the JPEG that the picture may arrive as
ARRIVAL_SCORE = 1.25  # mean score of the bits that is asked for after it
LUMA_RMS = 1.6  # levels, at gain 1
CHROMA_RMS = 0.5
LEAST_SCORE = 1.5  # of every bit in the marked picture as it is, in standard deviations
MIN_GAIN, MAX_GAIN = 0.1, 5.0
MARGIN = 0.5  # of quality, for what the last round changes
LOSS_POWER = 1.2  # 100 - SSIMULACRA2 grows with this power of the gain
ROUNDS = 3
TONE_SCORE = 4.4  # of every tone, in root mean powers of what lies around it
MAX_TONE = 1.1  # rms of the tones over that of the bits
MASK_POWER, MASK_FLOOR, MASK_WINDOW = 0.7, 1.5, 9
HIGHEST = 0.46  # cycles a pixel that a mark is written at
WORK_SIDE = 768  # pixels a side of the copy that a large picture is fitted on
TILE, TILES = 512, 2  # parts of a large picture, a side, that its visibility is measured on
TO_RGB = np.array([[1, 1, 1], [0, -0.344136, 1.772], [1.402, -0.714136, 0]], np.float32)  # of Y, Cb, Cr


def masking(luma: Plane) -> Plane:
    """How much of a change goes unseen at each place: least activity nearby, to a power, mean square 1."""
    detail = luma - box(luma, MASK_WINDOW)
    activity = np.sqrt(np.maximum(box(detail * detail, MASK_WINDOW), 0))
    least = box(minimum_filter(activity, MASK_WINDOW, mode="reflect"), MASK_WINDOW)
    mask = (least + MASK_FLOOR) ** MASK_POWER
    return mask / np.sqrt(np.mean(mask * mask))


@dataclass(frozen=True, eq=False)
class Fit:
    """A residual and what it reaches."""

    residual: Residual
    quality: float  # estimate of SSIMULACRA2, the worst of the sizes that it was measured at


class Writer:
    """Writes one secret after another into pictures, with the bands and tones of a layout."""

    def __init__(self, layout: Layout, quality: float | None = None) -> None:
        if quality is not None and not 0 <= quality <= 100:
            raise ValueError(f"a quality is an SSIMULACRA2 score of 0 ... 100, got {quality}")
        self.layout = layout
        self.worst, self.best = (MIN_QUALITY, MAX_QUALITY) if quality is None else (quality, quality)

    def fit(self, image: Image.Image, secret: Bits) -> Fit:
        """The residual of a secret (L,) for an RGB image."""
        work = _within(image, WORK_SIDE)
        frame = to_frame(planes(work))
        mask = masking(frame[0])
        signs = 2 * secret.astype(np.float64) - 1
        amplitudes = np.ones(len(signs))
        bits = self._bits(signs, mask, min(image.size))
        parts = [Part.of(image, place) for place in _places(image)]
        gain, quality = 1.0, 100.0
        residual = np.zeros_like(bits)
        for last in range(ROUNDS, -1, -1):
            residual = gain * bits
            residual[0] += self._tones(frame[0], residual[0], mask)
            quality = min(part.quality(residual) for part in parts)
            if last:
                gain = self._next_gain(gain, 100 - quality, self._arrival_score(work, residual, signs))
                amplitudes += self._missing(to_frame(planes(add(work, residual))), signs)
                bits = self._bits(signs * amplitudes, mask, min(image.size))
        return Fit(residual, quality)

    def _bits(self, signs: NDArray[np.float64], mask: Plane, side: int) -> Residual:
        """The mark of all bands for signed amplitudes (L,), without bands that `side` pixels cannot hold."""
        luma = np.zeros(FRAME * FRAME, np.float32)
        residual = np.zeros((3, FRAME, FRAME), np.float32)
        energy = 0.0
        for band in self.layout.bands:
            weight = min(1.0, max(0.0, (HIGHEST * side - band.low) / (band.high - band.low)))
            if band.plane:
                rms = weight * CHROMA_RMS
                residual[band.plane] += inverse(band.pattern(signs)) * (
                    rms * FRAME / math.sqrt(len(band.index))
                )
            else:
                luma += weight * band.pattern(signs)
                energy += weight**2 * len(band.index)
        residual[0] = inverse(luma) * mask * (LUMA_RMS * FRAME / math.sqrt(max(energy, 1.0)))
        return residual

    def _tones(self, luma: Plane, bits: Plane, mask: Plane) -> Plane:
        """Tones that stand out of the marked luma, each by TONE_SCORE, unless the picture would need too much."""
        tones = self.layout.tones
        turn = np.exp(-1j * (tones.phases + np.pi * tones.frequencies.sum(axis=1)))
        host = whiten(luma + bits)
        wanted = TONE_SCORE * tones.level(host)
        plain = (tones.responses(host, tones.frequencies) * turn).real
        amplitude = np.full(len(turn), 0.2)
        for _ in range(2):
            got = (
                tones.responses(whiten(luma + bits + tones.waves(amplitude) * mask), tones.frequencies) * turn
            ).real
            slope = max(float(np.mean(got - plain)) / float(amplitude.mean()), 1e-6)
            amplitude = np.clip(amplitude + (wanted - got) / slope, 0.0, 4.0) + 1e-3
        waves = tones.waves(amplitude) * mask
        return waves * min(1.0, MAX_TONE * float(bits.std()) / max(float(waves.std()), 1e-9))

    def _missing(self, frame: NDArray[np.float32], signs: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much more amplitude each bit needs to be read with LEAST_SCORE from the marked frame, (L,)."""
        scores = self._scores(frame) * signs
        return np.maximum(LEAST_SCORE - scores, 0) / max(float(scores.mean()), 1.0)

    def _scores(self, frame: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores of all bands together, standard normal where there is no mark, (L,)."""
        scores = self.layout.scores(frame)
        weights = gains(scores)
        return weights @ scores / np.linalg.norm(weights)

    def _arrival_score(self, work: Image.Image, residual: Residual, signs: NDArray[np.float64]) -> float:
        """Mean score of the bits, all bands together, after the picture went through a harsh JPEG."""
        buffer = io.BytesIO()
        add(work, residual).save(buffer, "JPEG", quality=ARRIVAL_JPEG)
        with Image.open(buffer) as arrived:
            return float(np.mean(self._scores(to_frame(planes(arrived.convert("RGB")))) * signs))

    def _next_gain(self, gain: float, loss: float, score: float) -> float:
        """The gain that reaches ARRIVAL_SCORE, within the bounds of quality."""

        def at(quality: float) -> float:
            return gain * (max(100 - quality, 1e-3) / max(loss, 0.1)) ** (1 / LOSS_POWER)

        wanted = gain * (ARRIVAL_SCORE / max(score, 0.1)) ** 0.8
        wanted = min(max(wanted, at(self.best)), at(min(self.worst + MARGIN, 100)))
        return float(np.clip(wanted, MIN_GAIN, MAX_GAIN))


Place = tuple[int, int, int, int]  # left, top, right, bottom in an image


def colours(residual: Residual, size: tuple[int, int], part: Box | None = None) -> NDArray[np.float32]:
    """A residual, or part of it, as levels of red, green and blue at (height, width)."""
    sized = np.stack([resample(plane, size, part) for plane in residual], axis=-1)
    return np.asarray(sized @ TO_RGB, np.float32)


def add(image: Image.Image, residual: Residual, part: Box | None = None) -> Image.Image:
    """An RGB image with a residual, or part of it, rounded to 8 bits."""
    pixels = colours(residual, (image.height, image.width), part)
    pixels += np.asarray(image)
    return Image.fromarray(np.clip(np.rint(pixels, out=pixels), 0, 255, out=pixels).astype(np.uint8))


@dataclass(frozen=True, eq=False)
class Part:
    """What visibility is measured on: a picture as people see it, and its place in the frame."""

    cover: Image.Image
    place: Box  # in the frame
    visibility: Visibility

    @classmethod
    def of(cls, image: Image.Image, place: Place | None) -> Part:
        """A part of the image at full size, or, without a place, all of it at the frame's size."""
        if place is None:
            cover, place = _within(image, FRAME), (0, 0, image.width, image.height)
        else:
            cover = image.crop(place)
        x, y = FRAME / image.width, FRAME / image.height
        left, top, right, bottom = place
        return cls(cover, (x * left, y * top, x * right, y * bottom), Visibility(cover))

    def quality(self, residual: Residual) -> float:
        """Estimate of SSIMULACRA2 with this residual."""
        return self.visibility.ssimulacra2(add(self.cover, residual, self.place))


def _within(image: Image.Image, side: int) -> Image.Image:
    """The image, shrunk to at most `side` pixels a side if it is larger."""
    if max(image.size) <= side:
        return image
    return ImageOps.contain(image, (side, side), Image.Resampling.LANCZOS)


def _places(image: Image.Image) -> list[Place | None]:
    """The whole picture, or tiles of a large one and (None) all of it at the frame's size."""
    if max(image.size) <= WORK_SIDE:
        return [(0, 0, image.width, image.height)]
    width, height = min(TILE, image.width), min(TILE, image.height)
    lefts = np.linspace(0, image.width - width, TILES + 2)[1:-1].astype(int)
    tops = np.linspace(0, image.height - height, TILES + 2)[1:-1].astype(int)
    return [*((x, y, x + width, y + height) for x in lefts.tolist() for y in tops.tolist()), None]
