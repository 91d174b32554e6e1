"""The tones, taken out, and the picture rotated, so that no search finds it; or bent, which no search undoes.

Tones are located in pictures of one key, or, without any, as what stands out of the victim's own spectrum.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.fft import irfft2, rfft2
from scipy.ndimage import gaussian_filter, map_coordinates, uniform_filter

from diffmark.pixel.spectrum import FRAME, whiten
from diffmark.pixel.tones import COUNT, HIGH, LOW
from diffmark.pixel.writer import add
from security.measuring import Row, Tasks
from security.spectra import frame_of
from security.testbed import FRESH, MANY, SEED, Finish, Testbed, Victim

ROTATION = 7.0  # degrees
NOTCH = 1.2  # cycles: width of the notch at a tone
LEVELS = (8.0, 6.0, 4.0, 3.0, 2.0)  # powers over their neighbourhood that waves are brought down to
AROUND = 25  # bins a side of that neighbourhood
UPRIGHT = 10  # pictures seen, of the row without rotation
BENDS = (0.5, 1.0, 2.0)  # pixels RMS that places are moved by
SMOOTH = 64.0  # pixels: deviation of the field's Gaussian


def tasks(testbed: Testbed) -> Tasks:
    yield "rotated", partial(testbed.removal, lambda victim, _: victim.marked, finish=turned)
    for kind, counts, words in ((FRESH, (1, 3, 10, 30, 100), ""), (MANY, (30, 100, 300), f", {MANY}")):
        for count in counts:
            if count <= testbed.pool_size:
                yield f"tones of {count} notched, rotated{words}", partial(_notch, testbed, kind, count)
    yield (
        "own peaks of the spectrum levelled, rotated",
        partial(
            testbed.removal,
            lambda victim, most: levelled(victim.marked, most),
            strengths=LEVELS,
            finish=turned,
        ),
    )
    if testbed.pool_size >= UPRIGHT:
        yield f"tones of {UPRIGHT} notched, upright", partial(_notch, testbed, FRESH, UPRIGHT, None)
    for pixels in BENDS:
        yield (
            f"bent by {pixels:g} pixels",
            partial(testbed.removal, lambda victim, _: victim.marked, finish=partial(bent, pixels=pixels)),
        )


def turned(image: Image.Image) -> Image.Image:
    """Rotated about its centre, black outside: the plain read is lost and the tones are needed."""
    return image.rotate(ROTATION, Image.Resampling.BICUBIC)


def bent(image: Image.Image, pixels: float) -> Image.Image:
    """Places moved along a smooth random field: nobody sees it, and no affine map undoes it."""
    rng = np.random.default_rng([SEED, 10])
    field = np.stack([gaussian_filter(rng.normal(size=image.size[::-1]), SMOOTH) for _ in range(2)])
    field *= pixels / np.sqrt(np.mean(np.sum(field**2, axis=0)))
    places = np.indices(field.shape[1:]) + field
    planes = [
        map_coordinates(plane, places, order=3, mode="nearest")
        for plane in np.moveaxis(np.asarray(image, float), 2, 0)
    ]
    return Image.fromarray(np.clip(np.rint(np.stack(planes, axis=2)), 0, 255).astype(np.uint8))


def _notch(testbed: Testbed, kind: str, count: int, finish: Finish | None = turned) -> Row:
    images = testbed.pool_images(kind, count)
    frequencies = located(np.mean([spectrum(image) for image in images], axis=0))
    true = testbed.private.layout.tones.frequencies
    near = [min(np.hypot(*(f - t)) for f in frequencies for t in (one, -one)) <= 1 for one in true]

    def attack(victim: Victim, _: float) -> Image.Image:
        return notched(victim.marked, frequencies)

    row = testbed.removal(attack, finish=finish)
    return row | {"seen": count, "tones_found": int(np.sum(near)), "tones": len(true)}


def spectrum(image: Image.Image) -> NDArray[np.complex64]:
    """Half spectrum of the whitened frame, every coefficient of at most unit size."""
    found = rfft2(whiten(frame_of(image)[0]))
    return (found / np.maximum(np.abs(found), 1e-9)).astype(np.complex64)


def located(mean: NDArray[np.complex64]) -> NDArray[np.float64]:
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
    transform = rfft2(luma)
    fy, fx = np.fft.fftfreq(FRAME, 1 / FRAME)[:, None], np.arange(FRAME // 2 + 1)[None]
    keep = np.ones(transform.shape, np.float32)
    for kx, ky in frequencies:
        for sign in (1, -1):
            keep *= 1 - np.exp(-((fx - sign * kx) ** 2 + (fy - sign * ky) ** 2) / (2 * NOTCH**2))
    residual = np.zeros((3, FRAME, FRAME), np.float32)
    residual[0] = irfft2(transform * keep, (FRAME, FRAME)).astype(np.float32) - luma
    return add(image, residual)


def levelled(image: Image.Image, most: float) -> Image.Image:
    """The image without what stands out: in the ring of the tones no power over `most` of its neighbourhood's."""
    start = frame_of(image)[0]
    fy, fx = np.fft.fftfreq(FRAME, 1 / FRAME)[:, None], np.arange(FRAME // 2 + 1)[None]
    radius = np.hypot(fx, fy)
    luma = start
    for _ in range(2):  # whitening is not linear
        power = np.abs(rfft2(whiten(luma))) ** 2
        over = power / np.maximum(uniform_filter(power, AROUND, mode="wrap"), 1e-9)
        gain = np.where((radius >= LOW) & (radius < HIGH), np.sqrt(most / np.maximum(over, most)), 1)
        luma = irfft2(rfft2(luma) * gain, (FRAME, FRAME)).astype(np.float32)
    residual = np.zeros((3, FRAME, FRAME), np.float32)
    residual[0] = luma - start
    return add(image, residual)
