"""Security: what somebody learns from n images of one secret.

The attacker averages n marked images of one secret and subtracts the average of n unmarked ones: what is left is an
estimate of the mark in pixels. Subtracted from a marked image it removes the mark; added to another image it forges
it. With a fresh secret for every image there is nothing to average.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, psnr
from diffmark.evaluation.studio import unseen_orders

NUMBERS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
VICTIMS = 20


def averaging(lab: Lab) -> Iterator[Row]:
    """A row a method, number of images and aim (remove, forge), with one secret for all and with fresh ones."""
    largest = lab.extent.marked
    for method in (method for method in lab.methods if method.bits):
        for fixed in (True, False):
            orders = unseen_orders(largest + VICTIMS, first=300_000, fixed_secret=fixed)
            secrets = np.stack([order.secret[: method.bits] for order in orders[-VICTIMS:]])
            victims = [lab.studio.marked(method, order) for order in orders[-VICTIMS:]]
            targets = [lab.studio.plain(order) for order in unseen_orders(VICTIMS, first=400_000)]
            for number in (number for number in NUMBERS if number <= largest):
                mark = _mean(lab.studio.marked(method, order) for order in orders[:number])
                mark -= _mean(lab.studio.plain(order) for order in unseen_orders(number, first=500_000))
                for aim, images, sign in (("remove", victims, -1), ("forge", targets, 1)):
                    changed = [_shift(image, sign * mark) for image in images]
                    row: Row = {"method": method.name, "secrets": "one" if fixed else "fresh", "aim": aim}
                    row |= {"seen": number} | bit_figures(method.decode(changed), secrets)
                    row["psnr"] = float(np.mean([psnr(a, b) for a, b in zip(images, changed, strict=True)]))
                    yield row


def _mean(images: Iterator[Image.Image]) -> NDArray[np.float64]:
    """Average picture, float, (H, W, 3)."""
    total, count = np.zeros(()), 0
    for image in images:
        total, count = total + np.asarray(image, np.float64), count + 1
    return total / count


def _shift(image: Image.Image, change: NDArray[np.float64]) -> Image.Image:
    return Image.fromarray(np.clip(np.asarray(image, np.float64) + change, 0, 255).round().astype(np.uint8))
