"""Removal by somebody who may ask the detector a thousand times whether a picture is marked.

A bisection between the marked picture and a copy that has lost the mark, then random parts of the change, in blocks
of its spectrum, are taken back as long as the detector still sees no mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy.fft import irfft2, rfft2

from diffmark.pixel.visibility import Visibility
from security import measuring
from security.measuring import Row, Tasks
from security.testbed import SEED, Testbed

QUESTIONS = (30, 100, 300, 1000)
ASKED_ABOUT = 3  # victims
BISECTIONS = 10
Item = TypeVar("Item")


def tasks(testbed: Testbed) -> Tasks:
    detector = testbed.detectors[testbed.private.key.id]
    victims = spread(testbed.victims("test"))
    images, secrets = [victim.marked for victim in victims], np.stack([victim.secret for victim in victims])

    def read(after: measuring.Images, numbers: Sequence[int]) -> Row:
        return testbed.read(testbed.private, after, secrets[list(numbers)])

    yield from questioned(testbed.folder, images, lambda image: detector.detect(image).marked, read)


def spread(items: Sequence[Item]) -> list[Item]:
    """ASKED_ABOUT of them."""
    return list(items[:: max(1, len(items) // ASKED_ABOUT)][:ASKED_ABOUT])


def questioned(
    folder: Path,
    images: Sequence[Image.Image],
    is_marked: Callable[[Image.Image], bool],
    read: Callable[[measuring.Images, Sequence[int]], Row],
) -> Tasks:
    """Rows of a search for each image, and of all together; `read` takes images and their numbers."""
    for number, image in enumerate(images):
        yield f"oracle: picture {number}", partial(_one, folder, image, is_marked, number)
    for count in QUESTIONS:
        yield f"oracle of {count} questions", partial(_together, folder, images, read, count)


def _one(folder: Path, image: Image.Image, is_marked: Callable[[Image.Image], bool], number: int) -> Row:
    """One picture through the detector's verdicts; what it came to is kept in the run's folder."""
    rng = np.random.default_rng([SEED, 7, number])
    best: dict[int, Image.Image] = {}
    for asked, found in through(image, destroyers(image), is_marked, max(QUESTIONS), rng):
        best |= {count: found for count in QUESTIONS if asked <= count}
    for count, found in best.items():
        found.save(_place(folder, number, count))
    return {"questions": max(QUESTIONS)}


def _place(folder: Path, number: int, count: int) -> Path:
    (folder / "oracle").mkdir(exist_ok=True)
    return folder / "oracle" / f"{number}-{count}.png"


def _together(
    folder: Path,
    images: Sequence[Image.Image],
    read: Callable[[measuring.Images, Sequence[int]], Row],
    count: int,
) -> Row:
    """All pictures that the attacker has come to the end with."""
    ended = [number for number in range(len(images)) if _place(folder, number, count).exists()]
    after = [Image.open(_place(folder, number, count)).convert("RGB") for number in ended]
    return read(after, ended) | measuring.quality([images[n] for n in ended], after) | {"questions": count}


def destroyers(image: Image.Image) -> list[Image.Image]:
    """Copies that may have lost the mark, the least damaged first."""
    small = (
        image.resize((image.width // by, image.height // by)).resize(image.size, Image.Resampling.BICUBIC)
        for by in (3, 4, 6, 8)
    )
    blurred = (image.filter(ImageFilter.GaussianBlur(radius)) for radius in (2, 3, 4, 6, 8, 12, 20))
    return sorted([*small, *blurred], key=lambda one: -Visibility(image).ssimulacra2(one))


def through(
    image: Image.Image,
    destroyed: Sequence[Image.Image],
    is_marked: Callable[[Image.Image], bool],
    questions: int,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Image.Image]]:
    """Pictures nearer and nearer to `image` that the detector passes, each with the questions asked so far.

    `destroyed` are copies of it that may have lost the mark, best first.
    """
    start = np.asarray(image, np.float32)
    first = next((n for n, one in enumerate(destroyed) if not is_marked(one)), len(destroyed) - 1)
    asked = first + 1
    yield asked, destroyed[first]

    def mixed(transform: NDArray[np.complex64]) -> Image.Image:
        back = irfft2(transform, start.shape[:2], axes=(0, 1))
        return Image.fromarray(np.clip(np.rint(start + back), 0, 255).astype(np.uint8))

    whole = rfft2(np.asarray(destroyed[first], np.float32) - start, axes=(0, 1))
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_marked(mixed(middle * whole)) else (low, middle)
    asked += BISECTIONS
    kept = high * whole
    yield asked, mixed(kept)
    for number in range(asked + 1, questions + 1):
        height, width = (int(side * rng.uniform(0.05, 0.3)) + 1 for side in kept.shape[:2])
        y, x = int(rng.integers(kept.shape[0])), int(rng.integers(max(1, kept.shape[1] - width)))
        tried = kept.copy()
        rows = np.arange(y, y + height) % kept.shape[0]
        tried[np.ix_(rows, np.arange(x, x + width))] *= rng.uniform(0, 0.8)
        if not is_marked(mixed(tried)):
            kept = tried
            yield number, mixed(kept)
    yield questions, mixed(kept)
