"""The writer of the pixel layer: a mark fitted to its picture, no stronger than it has to be, never plainly seen.

The residual that is added to a picture is, in luma,

    r = mask * (gain * sum_k w_k sum_b a_kb sigma_b P_kb + sum_t c_t tone_t),

with P_kb the pattern of bit b in band k, sigma_b = +-1 the bit, w_k the density of the mark in band k, and a mask
of local activity; chroma bands have no mask. Amplitudes a_kb, tones c_t and the gain are fitted to copies of the
picture as it may arrive (`arrivals`, `fitting`), within two bounds of visibility that are met at full size and at
512 pixels. Without rounds of fitting they are a guess (`forecast`), which takes a twentieth of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from diffmark.pixel.arrivals import BLURRED, COPIES, arrive
from diffmark.pixel.fitting import (
    LOSS_POWER,
    MAX_GAIN,
    TARGETS,
    TONE_SCORES,
    WEIGHTS,
    Constellation,
    evened,
    next_chroma,
    next_gain,
)
from diffmark.pixel.forecast import Forecast, forecast
from diffmark.pixel.layout import Layout
from diffmark.pixel.spectrum import FRAME, Box, Plane, box, inverse, least, planes, resample, scaled
from diffmark.pixel.tones import HIGHEST
from diffmark.pixel.visibility import Visibility
from diffmark.secret import Bits

Residual = NDArray[
    np.float32
]  # (3, h, w): luma, blue, red chroma, in levels of 0 ... 255, at most FRAME a side

MIN_QUALITY, MAX_QUALITY = 79.0, 90.0  # SSIMULACRA2: no worse, and no better than a mark that is easy to read
LARGE_MIN_QUALITY = 82.0  # of pictures that are larger than WORK_SIDE: people look at parts of them
ROUNDS = 3
FIRST_TONE = 0.5
LUMA_RMS = 1.6  # levels, at gain 1
CHROMA_RMS = 0.5
# What a coefficient gets, to begin with, and the loss of quality for each unit of its energy, by cycles a frame of
# 512 pixels or, in a smaller picture, by as many cycles a pixel. The lower luma is, the more it is seen and the
# less of it arrives; only chroma is left by a blur.
CYCLES = (36.0, 54.0, 76.0, 100.0, 124.0)
DENSITY = (0.3, 0.6, 1.0, 1.1, 1.3)
COST = (1.04, 0.59, 0.38, 0.28, 0.19)
MASK_POWER, MASK_FLOOR, MASK_WINDOW = 0.7, 1.5, 9
LARGE_MASK_POWER = 0.35  # of pictures that are larger than WORK_SIDE: their smooth places outlast a JPEG
WORK_SIDE = 768  # pixels a side of the copy that a large picture is fitted on
TILE, TILES = 512, 2  # parts of a large picture, a side, that its visibility is measured on
TO_RGB = np.array([[1, 1, 1], [0, -0.344136, 1.772], [1.402, -0.714136, 0]], np.float32)  # of Y, Cb, Cr


def masking(luma: Plane, power: float = MASK_POWER) -> Plane:
    """How much of a change goes unseen at each place: least activity nearby, to a power, mean square 1."""
    window = scaled(MASK_WINDOW, luma.shape)
    detail = luma - box(luma, window)
    activity = np.sqrt(np.maximum(box(detail * detail, window), 0))
    mask = (box(least(activity, window), window) + MASK_FLOOR) ** power
    return mask / np.sqrt(np.mean(mask * mask))


@dataclass(frozen=True, eq=False)
class Fit:
    """A residual and what it reaches."""

    residual: Residual
    quality: float  # estimate of SSIMULACRA2, the worst of the sizes that it was measured at


class Writer:
    """Writes one secret after another into pictures, with the bands and tones of a layout."""

    def __init__(self, layout: Layout, quality: float | None = None, rounds: int = ROUNDS) -> None:
        if quality is not None and not 0 <= quality <= 100:
            raise ValueError(f"a quality is an SSIMULACRA2 score of 0 ... 100, got {quality}")
        if rounds < 0:
            raise ValueError(f"rounds of fitting are 0 or more, got {rounds}")
        self.layout, self.rounds = layout, rounds
        self.quality = quality
        self._weights = np.array([WEIGHTS.get(name, 1.0) for name in COPIES])
        self._planes = np.array([band.plane for band in layout.bands])

    def fit(self, image: Image.Image, secret: Bits) -> Fit:
        """The residual of a secret (L,) for an RGB image."""
        work = _within(image, WORK_SIDE)
        picture = np.stack([resample(plane, _shape(image)) for plane in planes(work)])
        large = max(image.size) > WORK_SIDE
        mask = masking(picture[0], LARGE_MASK_POWER if large else MASK_POWER)
        signs = 2 * secret.astype(np.float64) - 1
        first = Forecast(np.ones((len(self.layout.bands), len(signs))), FIRST_TONE, MIN_QUALITY)
        if not self.rounds:
            first = forecast(picture, mask, self.layout, signs)
        amplitudes, tones = first.amplitudes, Constellation(self.layout.tones, mask, first.tone)
        parts = [Part.of(image, place) for place in _places(image)]
        lowest = LARGE_MIN_QUALITY if large else MIN_QUALITY
        worst, best = (lowest, MAX_QUALITY) if self.quality is None else (self.quality, self.quality)
        density, costs = self._densities(min(image.size))
        gain, chroma = 1.0, 1.0
        for last in range(self.rounds, -1, -1):
            residual = gain * self._bits(signs * amplitudes, density, chroma, mask)
            residual[0] += tones.waves(residual[0])
            quality = min(part.quality(residual) for part in parts)
            if last:
                marked = add(work, residual)
                found = {name: arrive(copy, marked, self.layout) for name, copy in COPIES.items()}
                scores = np.stack([copy.scores * signs for copy in found.values()])
                amplitudes = evened(amplitudes, scores, self._weights, costs, self._planes)
                reached = dict(zip(found, scores.sum(axis=1).mean(axis=1), strict=True))
                wanted = max(score / max(reached[name], 0.1) for name, score in TARGETS.items())
                before, gain = gain, next_gain(gain, 100 - quality, wanted, worst, best)
                chroma = next_chroma(chroma * before / gain, reached[BLURRED])
                tones.fit({name: found[name].white for name in TONE_SCORES})
        if not self.rounds:  # no copy has said how strong it must be
            best = float(np.clip(first.quality, worst, best))
            factor = ((100 - best) / max(100 - quality, 1e-3)) ** (1 / LOSS_POWER)
            return Fit(residual * np.float32(min(factor, MAX_GAIN)), best)
        for _ in range(ROUNDS):
            if quality >= worst or not residual.any():
                break
            residual *= ((100 - worst) / (100 - quality)) ** (1 / LOSS_POWER) * 0.99
            quality = min(part.quality(residual) for part in parts)
        return Fit(residual, quality)

    def _densities(self, side: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Density of each band, without those that `side` pixels cannot hold, and what its energy costs, (K,)."""
        bands = self.layout.bands
        held = [np.clip((HIGHEST * side - band.low) / (band.high - band.low), 0.0, 1.0) for band in bands]
        cycles = [(band.low + band.high) / 2 * max(1.0, FRAME / side) for band in bands]
        luma = self._planes == 0
        density = np.where(luma, np.interp(cycles, CYCLES, DENSITY), 1.0) * held
        counts = [len(band.index) for band in bands]
        return density, np.interp(cycles, CYCLES, COST) * np.maximum(density, 0.05) ** 2 * counts

    def _bits(
        self, signed: NDArray[np.float64], density: NDArray[np.float64], chroma: float, mask: Plane
    ) -> Residual:
        """The mark of all bands for signed amplitudes (K, L)."""
        bands, luma, energy = self.layout.bands, self.layout.reach(luma=True), 0.0
        spectra = [
            np.zeros((reach, reach), np.float32) for reach in (luma, *2 * [self.layout.reach(luma=False)])
        ]
        for band, weight, values in zip(bands, density, signed, strict=True):
            if band.plane:
                weight *= chroma * CHROMA_RMS * FRAME / math.sqrt(len(band.index))
            else:
                energy += weight**2 * len(band.index)
            spectra[band.plane] += band.pattern(weight * values, len(spectra[band.plane]))
        spectra[0] *= LUMA_RMS * FRAME / math.sqrt(max(energy, 1.0))
        residual = np.stack([inverse(spectrum, mask.shape) for spectrum in spectra])
        residual[0] *= mask
        return residual


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
    place: Box  # in the residual
    visibility: Visibility

    @classmethod
    def of(cls, image: Image.Image, place: Place | None) -> Part:
        """A part of the image at full size, or, without a place, all of it at the frame's size."""
        if place is None:
            cover, place = _within(image, FRAME), (0, 0, image.width, image.height)
        else:
            cover = image.crop(place)
        height, width = _shape(image)
        x, y = width / image.width, height / image.height
        left, top, right, bottom = place
        return cls(cover, (x * left, y * top, x * right, y * bottom), Visibility(cover))

    def quality(self, residual: Residual) -> float:
        """Estimate of SSIMULACRA2 with this residual."""
        return self.visibility.ssimulacra2(add(self.cover, residual, self.place))


def _shape(image: Image.Image) -> tuple[int, int]:
    """Height and width of an image's residual: its own, but for what is larger than the frame."""
    return min(image.height, FRAME), min(image.width, FRAME)


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
