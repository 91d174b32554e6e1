"""Security: what somebody learns from n images of one secret.

The attacker averages n marked images of one secret and subtracts the average of n unmarked ones: what is left is an
estimate of the mark. Up to half of the pool the unmarked ones are of other prompts; at the whole pool both sets are
of the same prompts, and the estimate is the mark itself: the best that an attacker can hope for. Subtracted from a
marked image it removes the mark; added to another image it forges it. The averages are of pixels, or of latents
where the attacker has the autoencoder. With a fresh secret for every image there is nothing to average.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.evaluation.batches import batches
from diffmark.evaluation.cache import Recipe
from diffmark.evaluation.harness import Harness, Row
from diffmark.mark.generation import ImageSpec
from diffmark.metrics import bit_figures, psnr

NUMBERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SPACES = ("pixels", "latents")


def averaging(harness: Harness) -> Iterator[Row]:
    """Removal and forgery with the average of n images, in pixels and in latents; one secret, or fresh ones."""
    pool, victims = harness.extent.pool, harness.extent.victims
    for method in (method for method in harness.methods if not method.has_one_key and not method.repaints):
        for fixed in (True, False):
            seen = harness.specs(pool, fixed_secret=fixed)
            last = harness.specs(victims, first=pool, fixed_secret=fixed)
            secrets = harness.secrets(method, last)
            marked, targets = (
                harness.marked(method, last),
                harness.plain(harness.specs(victims, first=pool + victims)),
            )
            for space in SPACES:
                for number, mark in _estimates(harness, method, seen, space):
                    for aim, images, sign in (("remove", marked, -1), ("forge", targets, 1)):
                        changed = _shifted(harness, images, sign * mark, space)
                        found = harness.read(method, changed, secrets)
                        row: Row = {"method": method.name, "secrets": "one" if fixed else "fresh"}
                        row |= {"space": space, "aim": aim, "seen": number}
                        row |= bit_figures(found.margins, secrets)
                        row["psnr_of_attack"] = float(
                            np.mean([psnr(a, b) for a, b in zip(images, changed, strict=True)])
                        )
                        yield row


def _estimates(
    harness: Harness, method: Method, seen: list[ImageSpec], space: str
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(n, mark) for each n: mean of n marked images less the mean of n unmarked ones."""
    half = len(seen) // 2
    others, total, first = [*seen[half:], *seen[:half]], np.zeros(()), 0
    for number in (number for number in NUMBERS if number <= len(seen)):
        for part in batches(range(first, number), 50):
            chosen = slice(part[0], part[-1] + 1)
            total = total + _difference(harness, method, seen[chosen], others[chosen], space)
        first = number
        yield number, total / number


def _difference(
    harness: Harness, method: Method, seen: list[ImageSpec], others: list[ImageSpec], space: str
) -> NDArray[np.float64]:
    """Sum of marked images less the sum of as many unmarked ones; kept, as it takes the encoding of them all."""

    def total(images: list[Image.Image]) -> NDArray[np.float64]:
        if space == "latents":
            return harness.encoded(images).double().numpy().sum(axis=0)
        return np.sum([np.asarray(image, np.float64) for image in images], axis=0)

    recipe: Recipe = {"sum": space, "method": method.fingerprint(), "model": harness.model.digest}
    recipe |= {"specs": [(spec.seed, spec.secret[: method.bits].tolist()) for spec in seen]}
    recipe |= {"others": [spec.seed for spec in others]}
    recipe |= {"sampling": [harness.model.sampling.steps, harness.model.sampling.guidance]}
    kept = harness.cache.remember(
        recipe, lambda: {"sum": total(harness.marked(method, seen)) - total(harness.plain(others))}
    )
    return kept["sum"]


def _shifted(
    harness: Harness, images: Sequence[Image.Image], change: NDArray[np.float64], space: str
) -> list[Image.Image]:
    """Images with the change added: in pixels, or as what it does to the decoded latents."""
    if space == "pixels":
        return [add(image, change) for image in images]
    z = harness.encoded(images)
    before, after = harness.decoded(z), harness.decoded(z + torch.from_numpy(change).to(z))
    differences = [
        np.asarray(b, np.float64) - np.asarray(a, np.float64) for a, b in zip(before, after, strict=True)
    ]
    return [add(image, difference) for image, difference in zip(images, differences, strict=True)]


def add(image: Image.Image, change: NDArray[np.float64]) -> Image.Image:
    """The image with a change of its levels, rounded."""
    return Image.fromarray(np.clip(np.asarray(image, np.float64) + change, 0, 255).round().astype(np.uint8))
