"""Removal by somebody with writer and reader: under the public key, and with another key at a private one.

The reader is linear in the whitened luma, so the gradient of its margins is known: each step of the gradient attack
(projected gradient descent, L-infinity) goes along its sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.layout import gains
from diffmark.pixel.spectrum import FRAME, NOISE_FLOOR, Plane, box, forward, inverse, whiten
from diffmark.pixel.writer import add
from security.measuring import Tasks
from security.spectra import frame_of
from security.testbed import Testbed, Victim

STEPS = 20
EPSILONS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)  # levels of 255
DONE = 2.0  # a margin that has changed its sign by so much is left alone
STRANGERS = 0x1234  # the secret of somebody who overwrites

Margins = NDArray[np.floating[Any]]


def tasks(testbed: Testbed) -> Tasks:
    for public, codec, whose in (
        (True, testbed.public, "public"),
        (False, testbed.stranger, "private, attacked with another"),
    ):

        def complement(victim: Victim, _: float, codec: PixelCodec = codec) -> Image.Image:
            bits = codec.read(victim.marked, search=False).margins > 0
            return codec.embed(victim.marked, (1 - bits).astype(np.uint8)).image

        def overwritten(victim: Victim, _: float, codec: PixelCodec = codec) -> Image.Image:
            return codec.embed(victim.marked, STRANGERS).image

        def followed(victim: Victim, epsilon: float, codec: PixelCodec = codec) -> Image.Image:
            return descended(victim.marked, codec, epsilon)

        yield f"complement written, {whose} key", lambda p=public, a=complement: testbed.removal(a, public=p)
        yield f"overwritten, {whose} key", lambda p=public, a=overwritten: testbed.removal(a, public=p)
        yield (
            f"gradient on the margins, {whose} key",
            lambda p=public, a=followed: testbed.removal(a, public=p, strengths=EPSILONS),
        )


def descended(image: Image.Image, codec: PixelCodec, epsilon: float) -> Image.Image:
    """The image within `epsilon` levels whose margins have lost what they said, luma alone."""
    margins = codec.read(image, search=False).margins
    signs, changed = np.sign(margins), image
    change = np.zeros((3, FRAME, FRAME), np.float32)
    for _ in range(STEPS):
        step = _uphill(changed, codec, signs, margins)
        change[0] = np.clip(change[0] - 2 * epsilon / STEPS * step, -epsilon, epsilon)
        changed = add(image, change)
        margins = codec.read(changed, search=False).margins
        if np.mean(margins * signs) <= 0:
            break
    return changed


def _uphill(image: Image.Image, codec: PixelCodec, signs: Margins, margins: Margins) -> Plane:
    """Sign of the gradient of sum_b sign_b margin_b over the frame's luma; local deviations are held fixed."""
    luma = frame_of(image)[0]
    detail = luma - box(luma)
    deviation = np.sqrt(np.maximum(box(detail * detail), 0) + NOISE_FLOOR**2)
    transform = forward(whiten(luma))
    scores = codec.layout.white_scores(whiten(luma))
    left = signs * (signs * margins > -DONE)  # the others have lost what they said
    total = np.zeros(luma.size, np.float32)
    bands = [band for band in codec.layout.bands if not band.plane]
    for band, gain in zip(bands, gains(scores), strict=True):
        values = transform.ravel()[band.index]
        ring = np.sqrt(np.bincount(band.ring, values**2) / np.maximum(np.bincount(band.ring), 1))[band.ring]
        total[band.index] = gain * band.sign * left[band.owner] / np.maximum(ring, 1e-6)
    white = inverse(total.reshape(FRAME, FRAME)) / deviation
    return np.sign(white - box(white))
