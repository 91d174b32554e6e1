"""Who has the model's autoencoder and has seen 1 ... 1,000 marked pictures, but has neither network nor key.

Means of latents, principal directions, and linear readers that are fitted: as for the pixel layer (`seen`).
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from PIL import Image

from diffmark.statistics import auc
from security.measuring import Row, Tasks
from security.privacy import pairs
from security.spectra import fitted, principal
from security.studio import FRESH, NONE, ONE, STRENGTHS, Attack, Rows, Studio

OF_ONE, OF_FRESH = (1, 10, 100), (10, 100, 300, 1000)
RIDGE = 0.1  # of the mean energy of a picture
LINKED = 100  # pictures of each kind that are told apart, in pairs


def tasks(studio: Studio) -> Tasks:
    yield "forgery: fine latents copied from one picture", partial(_copied, studio)
    yield "privacy: two pictures of one secret, by latents", partial(_linked, studio)
    for count in sorted({*OF_ONE, *OF_FRESH}):
        if count > studio.counts["seen"]:
            continue
        if count in OF_ONE:
            yield f"mean latents of {count}, {ONE}", partial(_mean, studio, count, ONE)
            yield f"forgery: mean latents of {count}, {ONE}", partial(_forged, studio, count)
        if count in OF_FRESH:
            yield f"mean latents of {count}, {FRESH}", partial(_mean, studio, count, FRESH)
            yield f"principal directions of {count}, {FRESH}", partial(_principal, studio, count)
            yield f"surrogate fitted to {count}, {FRESH}", partial(_surrogate, studio, count)
            yield f"reader fitted to {count}, {FRESH}", partial(_fitted, studio, count)


def _copied(studio: Studio) -> Row:
    """Latents less their local mean, of one marked picture, added to another's."""

    def forge(cover: Image.Image, number: int, part: str, strength: float) -> Image.Image:
        z = studio.latents(studio.made(part, FRESH)[number])
        smooth = torch.nn.functional.avg_pool2d(z, 5, 1, 2, count_include_pad=False)
        return studio.shifted(cover, (z - smooth).flatten().numpy(), strength)

    return studio.forgery(forge, lambda part: studio.of(part, FRESH)) | {"seen": 1}


def _linked(studio: Studio) -> Row:
    """Two pictures of one secret told from two of different ones: area under the ROC curve."""
    count = min(LINKED, studio.counts["seen"], max(OF_ONE))
    same, fresh = (pairs(studio.rows(kind, count)) for kind in (ONE, FRESH))
    return {"pairs": len(same), "auc": round(auc(same, fresh), 4)}


def _mean(studio: Studio, count: int, kind: str) -> Row:
    """Mean latents of marked pictures less those of unmarked ones, which who has the model can make at will."""
    mark = _estimate(studio, count, kind)
    row = studio.removal(lambda image, s: studio.shifted(image, -mark, s), STRENGTHS, kind)
    return row | {"seen": count}


def _estimate(studio: Studio, count: int, kind: str) -> Rows:
    return studio.rows(kind, count).mean(axis=0) - studio.unmarked_mean


def _forged(studio: Studio, count: int) -> Row:
    mark = _estimate(studio, count, ONE)
    row = studio.forgery(
        lambda cover, number, part, s: studio.shifted(cover, mark, s), lambda part: studio.of(part, ONE)
    )
    return row | {"seen": count}


def _principal(studio: Studio, count: int) -> Row:
    rows = studio.rows(FRESH, count) - studio.unmarked_mean
    return studio.removal(_without(studio, principal(rows, studio.length)), STRENGTHS) | {"seen": count}


def _without(studio: Studio, directions: Rows) -> Attack:
    def attack(image: Image.Image, strength: float) -> Image.Image:
        z = studio.latents(image).flatten().numpy() - studio.unmarked_mean
        return studio.shifted(image, -(directions @ z) @ directions, strength)

    return attack


def _surrogate(studio: Studio, count: int) -> Row:
    """A linear decoder of "marked" by ridge regression; its direction is taken out of each victim."""
    marked, plain = studio.rows(FRESH, count), studio.rows(NONE, min(count, studio.unmarked))
    targets = np.repeat([[1.0], [-1.0]], [len(marked), len(plain)], axis=0)
    (direction,) = ridge(np.concatenate([marked, plain]) - studio.unmarked_mean, targets)
    told = [
        np.array([direction @ studio.latents(image).flatten().numpy() for image in studio.made("test", kind)])
        for kind in (FRESH, NONE)
    ]
    row = studio.removal(lambda image, s: studio.shifted(image, -direction, s), STRENGTHS)
    return row | {"seen": count, "auc_marked_against_unmarked": round(auc(*told), 4)}


def _fitted(studio: Studio, count: int) -> Row:
    """The secrets of what he has seen are known to him.

    Bits are read by ridge regression, and what each bit adds to the latents, on average, is taken out.
    """
    rows, secrets = studio.rows(FRESH, count) - studio.unmarked_mean, studio.of("seen", FRESH)[:count]
    patterns, readers = fitted(rows, secrets), ridge(rows, 2.0 * secrets.astype(np.float32) - 1)

    def bits(image: Image.Image) -> Rows:
        return readers @ (studio.latents(image).flatten().numpy() - studio.unmarked_mean) > 0

    read = np.stack([bits(image) for image in studio.made("test", FRESH)])
    right = float(np.mean(read == studio.of("test", FRESH)))

    def attack(image: Image.Image, strength: float) -> Image.Image:
        return studio.shifted(image, -((2.0 * bits(image) - 1) @ patterns), strength)

    return studio.removal(attack, STRENGTHS) | {"seen": count, "bits_read_without_key": round(right, 4)}


def ridge(rows: Rows, targets: Rows) -> Rows:
    """Linear readers (K, D) of targets (N, K), by ridge regression."""
    gram = (rows @ rows.T).astype(np.float64)
    gram += gram.diagonal().mean() * RIDGE * np.eye(len(gram))
    return (np.linalg.solve(gram, targets).T.astype(np.float32) @ rows).astype(np.float32)
