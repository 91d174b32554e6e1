"""Who has the model's autoencoder and has seen 1 ... 1,000 marked pictures, but has neither network nor key.

Means of latents, principal directions, and linear readers that are fitted: as for the pixel layer (`seen`).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from PIL import Image

from diffmark.statistics import auc
from security.generation_testbed import FRESH, NONE, ONE, STRENGTHS, Attack, GenerationTestbed, Rows
from security.measuring import Row, Tasks
from security.privacy import pairs
from security.spectra import fitted, principal

OF_ONE, OF_FRESH = (1, 10, 100), (10, 100, 300, 1000)
RIDGE = 0.1  # of the mean energy of a picture
LINKED = 100  # pictures of each kind that are told apart, in pairs


def tasks(testbed: GenerationTestbed) -> Tasks:
    yield "forgery: fine latents copied from one picture", partial(_copied, testbed)
    yield "privacy: two pictures of one secret, by latents", partial(_linked, testbed)
    for count in sorted({*OF_ONE, *OF_FRESH}):
        if count > testbed.counts["seen"]:
            continue
        if count in OF_ONE:
            yield f"mean latents of {count}, {ONE}", partial(_mean, testbed, count, ONE)
            yield f"forgery: mean latents of {count}, {ONE}", partial(_forged, testbed, count)
        if count in OF_FRESH:
            yield f"mean latents of {count}, {FRESH}", partial(_mean, testbed, count, FRESH)
            yield f"principal directions of {count}, {FRESH}", partial(_principal, testbed, count)
            yield f"surrogate fitted to {count}, {FRESH}", partial(_surrogate, testbed, count)
            yield f"reader fitted to {count}, {FRESH}", partial(_fitted, testbed, count)


def _copied(testbed: GenerationTestbed) -> Row:
    """Latents less their local mean, of one marked picture, added to another's."""

    def forge(cover: Image.Image, number: int, part: str, strength: float) -> Image.Image:
        z = testbed.latents(testbed.made(part, FRESH)[number])
        smooth = torch.nn.functional.avg_pool2d(z, 5, 1, 2, count_include_pad=False)
        return testbed.shifted(cover, (z - smooth).flatten().numpy(), strength)

    return testbed.forgery(forge, lambda part: testbed.of(part, FRESH)) | {"seen": 1}


def _linked(testbed: GenerationTestbed) -> Row:
    """Two pictures of one secret told from two of different ones: area under the ROC curve."""
    count = min(LINKED, testbed.counts["seen"], max(OF_ONE))
    same, fresh = (pairs(testbed.rows(kind, count)) for kind in (ONE, FRESH))
    return {"pairs": len(same), "auc": round(auc(same, fresh), 4)}


def _mean(testbed: GenerationTestbed, count: int, kind: str) -> Row:
    """Mean latents of marked pictures less those of unmarked ones, which who has the model can make at will."""
    mark = _estimate(testbed, count, kind)
    row = testbed.removal(lambda image, s: testbed.shifted(image, -mark, s), STRENGTHS, kind)
    return row | {"seen": count}


def _estimate(testbed: GenerationTestbed, count: int, kind: str) -> Rows:
    return testbed.rows(kind, count).mean(axis=0) - testbed.unmarked_mean


def _forged(testbed: GenerationTestbed, count: int) -> Row:
    mark = _estimate(testbed, count, ONE)
    row = testbed.forgery(
        lambda cover, number, part, s: testbed.shifted(cover, mark, s), lambda part: testbed.of(part, ONE)
    )
    return row | {"seen": count}


def _principal(testbed: GenerationTestbed, count: int) -> Row:
    rows = testbed.rows(FRESH, count) - testbed.unmarked_mean
    return testbed.removal(_without(testbed, principal(rows, testbed.length)), STRENGTHS) | {"seen": count}


def _without(testbed: GenerationTestbed, directions: Rows) -> Attack:
    def attack(image: Image.Image, strength: float) -> Image.Image:
        z = testbed.latents(image).flatten().numpy() - testbed.unmarked_mean
        return testbed.shifted(image, -(directions @ z) @ directions, strength)

    return attack


def _surrogate(testbed: GenerationTestbed, count: int) -> Row:
    """A linear decoder of "marked" by ridge regression; its direction is taken out of each victim."""
    marked, plain = testbed.rows(FRESH, count), testbed.rows(NONE, min(count, testbed.unmarked))
    targets = np.repeat([[1.0], [-1.0]], [len(marked), len(plain)], axis=0)
    (direction,) = ridge(np.concatenate([marked, plain]) - testbed.unmarked_mean, targets)
    told = [
        np.array(
            [direction @ testbed.latents(image).flatten().numpy() for image in testbed.made("test", kind)]
        )
        for kind in (FRESH, NONE)
    ]
    row = testbed.removal(lambda image, s: testbed.shifted(image, -direction, s), STRENGTHS)
    return row | {"seen": count, "auc_marked_against_unmarked": round(auc(*told), 4)}


def _fitted(testbed: GenerationTestbed, count: int) -> Row:
    """The secrets of what he has seen are known to him.

    Bits are read by ridge regression, and what each bit adds to the latents, on average, is taken out.
    """
    rows, secrets = testbed.rows(FRESH, count) - testbed.unmarked_mean, testbed.of("seen", FRESH)[:count]
    patterns, readers = fitted(rows, secrets), ridge(rows, 2.0 * secrets.astype(np.float32) - 1)

    def bits(image: Image.Image) -> Rows:
        return readers @ (testbed.latents(image).flatten().numpy() - testbed.unmarked_mean) > 0

    read = np.stack([bits(image) for image in testbed.made("test", FRESH)])
    right = float(np.mean(read == testbed.of("test", FRESH)))

    def attack(image: Image.Image, strength: float) -> Image.Image:
        return testbed.shifted(image, -((2.0 * bits(image) - 1) @ patterns), strength)

    return testbed.removal(attack, STRENGTHS) | {"seen": count, "bits_read_without_key": round(right, 4)}


def ridge(rows: Rows, targets: Rows) -> Rows:
    """Linear readers (K, D) of targets (N, K), by ridge regression."""
    gram = (rows @ rows.T).astype(np.float64)
    gram += gram.diagonal().mean() * RIDGE * np.eye(len(gram))
    return (np.linalg.solve(gram, targets).T.astype(np.float32) @ rows).astype(np.float32)
