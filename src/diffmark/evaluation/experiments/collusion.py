"""Security: k accounts ask for the same picture, each gets its own secret, and they mix their copies.

Mixing means the average or the median of the copies, of pixels or of latents. A detector that knows a million
accounts must not name somebody who was not among them; whether it still names one of the k is the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from diffmark.evaluation.harness import Harness, Row
from diffmark.mark.generation import ImageSpec
from diffmark.metrics import share
from diffmark.statistics import match_threshold, per_try

COLLUDERS = (1, 2, 3, 5, 8)
ACCOUNTS, RATE = 10**6, 1e-6  # family-wise
INNOCENTS = 10**4  # of them, whose secrets are held against every mixture
MIXTURES = (("mean", "pixels"), ("median", "pixels"), ("mean", "latents"))


def collusion(harness: Harness) -> Iterator[Row]:
    """k copies of one picture with k secrets, mixed: is one of the k named among a million accounts?"""
    specs = harness.specs(harness.extent.victims)
    for method in (method for method in harness.methods if not method.has_one_key and not method.costly):
        try:
            needed = match_threshold(method.bits, per_try(RATE, ACCOUNTS))
        except ValueError:  # too few bits to name anybody among so many
            continue
        copies = [_with_secrets(specs, number) for number in range(max(COLLUDERS))]
        pictures = [harness.marked(method, some) for some in copies]
        secrets = np.stack([harness.secrets(method, some) for some in copies])  # (k, N, bits)
        for count in COLLUDERS:
            for how, space in MIXTURES:
                mixed = _mixed(harness, pictures[:count], how, space)
                bits = harness.read(method, mixed, secrets[0]).margins > 0
                matches = (bits == secrets[:count]).sum(axis=2)  # (k, N)
                row: Row = {"method": method.name, "colluders": count, "mixed": f"{how} of {space}"}
                row |= {
                    "images": len(specs),
                    "best_accuracy": float(matches.max(axis=0).mean() / method.bits),
                }
                row["someone_named"] = share((matches >= needed).any(axis=0))
                row["all_named"] = share((matches >= needed).all(axis=0))
                row["innocent_named"] = share(_innocent(bits, needed))
                yield row


def _with_secrets(specs: list[ImageSpec], number: int) -> list[ImageSpec]:
    """The same pictures for the number-th account."""
    rng = np.random.default_rng([number, 555])
    return [replace(o, secret=rng.integers(0, 2, len(o.secret)).astype(np.uint8)) for o in specs]


def _mixed(harness: Harness, pictures: list[list[Image.Image]], how: str, space: str) -> list[Image.Image]:
    if space == "latents":
        z = torch.stack([harness.encoded(images) for images in pictures])
        return harness.decoded(z.mean(dim=0))
    stacks = [
        np.stack([np.asarray(image, np.float64) for image in copies])
        for copies in zip(*pictures, strict=True)
    ]
    mix = np.mean if how == "mean" else np.median
    return [Image.fromarray(np.rint(mix(stack, axis=0)).astype(np.uint8)) for stack in stacks]


def _innocent(bits: NDArray[np.bool_], needed: int) -> NDArray[np.bool_]:
    """Whether one of many accounts that had no copy reaches the threshold, an image each."""
    signs = 2.0 * bits - 1
    others = np.random.default_rng(9).choice([-1.0, 1.0], (signs.shape[1], INNOCENTS))
    return (signs @ others).max(axis=1) >= 2 * needed - signs.shape[1]
