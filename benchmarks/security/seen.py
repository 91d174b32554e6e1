"""Removal and forgery by somebody without the key who has seen 1 ... 1,000 marked pictures.

Means show the pattern of one secret; principal directions show the space of all patterns; who knows the secrets
fits the reader itself, a surrogate decoder: as the reader is linear in these coefficients, so is the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from security import spectra
from security.measuring import Row, Tasks
from security.testbed import FRESH, MANY, ONE, SETS, STRENGTHS, Features, Testbed, Victim

# How many pictures are seen: of one secret the pattern is plain after a few, of fresh secrets it takes many.
OF_ONE, OF_FRESH, OF_MANY = (1, 3, 10, 30, 100), (10, 100, 1000), (300,)


def tasks(testbed: Testbed) -> Tasks:
    for count in sorted({*OF_ONE, *OF_FRESH, *OF_MANY}):
        if count > testbed.pool_size:
            continue
        if count in OF_ONE:
            yield f"mean of {count}, {ONE}", partial(_mean, testbed, ONE, count)
            yield f"forgery: mean of {count}, {ONE}", partial(_forged_mean, testbed, count)
        if count in OF_FRESH:
            yield f"mean of {count}, {FRESH}", partial(_mean, testbed, FRESH, count)
            yield f"principal directions of {count}, {FRESH}", partial(_principal, testbed, FRESH, count)
            yield f"reader fitted to {count}, {FRESH}", partial(_fitted, testbed, FRESH, count)
            yield f"forgery: reader fitted to {count}, {FRESH}", partial(_forged_fit, testbed, FRESH, count)
        if count in OF_MANY:
            yield f"principal directions of {count}, {MANY}", partial(_principal, testbed, MANY, count)
            yield f"reader fitted to {count}, {MANY}", partial(_fitted, testbed, MANY, count)


def _mean(testbed: Testbed, kind: str, count: int) -> Row:
    mark = testbed.pool(kind, count).mean(axis=0)

    def attack(victim: Victim, strength: float) -> Image.Image:
        return spectra.shifted(victim.marked, -mark, strength)

    return testbed.removal(attack, one_secret=kind == ONE, strengths=STRENGTHS) | {"seen": count}


def _principal(testbed: Testbed, kind: str, count: int) -> Row:
    """As many directions as there are bits; of one secret it would be the mean, which has its own row."""
    rows = testbed.pool(kind, count)
    directions = spectra.principal(rows - rows.mean(axis=0), 64 * (SETS if kind == MANY else 1))
    return testbed.removal(without(directions), strengths=STRENGTHS) | {"seen": count}


def _fitted(testbed: Testbed, kind: str, count: int) -> Row:
    """A strong attacker: the secrets of what he has seen are known to him."""
    patterns = spectra.fitted(testbed.pool(kind, count), testbed.pool_secrets(kind, count))
    victims = testbed.victims("test")
    read = np.stack([patterns @ spectra.features(victim.marked) > 0 for victim in victims])
    right = float(np.mean(read == np.stack([victim.secret for victim in victims])))
    row = testbed.removal(without(patterns), strengths=STRENGTHS)
    return row | {"seen": count, "bits_read_without_key": round(right, 4)}


def without(directions: Features) -> Callable[[Victim, float], Image.Image]:
    """The attack that takes out what lies in the span of some directions."""

    def attack(victim: Victim, strength: float) -> Image.Image:
        return spectra.shifted(victim.marked, -spectra.within(directions, victim.marked), strength)

    return attack


def _forged_mean(testbed: Testbed, count: int) -> Row:
    mark, secret = testbed.pool(ONE, count).mean(axis=0), testbed.secrets(5, 1)[0]
    return testbed.forgery(lambda number, part: mark, lambda number: secret) | {"seen": count}


def _forged_fit(testbed: Testbed, kind: str, count: int) -> Row:
    """Any secret at all, written with the patterns of a fit."""
    patterns = spectra.fitted(testbed.pool(kind, count), testbed.pool_secrets(kind, count))
    secrets = testbed.secrets(9, max(testbed.counts.values()))
    marks = [(2.0 * secret.astype(np.float32) - 1) @ patterns for secret in secrets]
    return testbed.forgery(lambda number, part: marks[number], lambda number: secrets[number]) | {
        "seen": count
    }
