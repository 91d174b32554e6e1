"""Accounts that mix their copies of one picture: is one of them named, and is ever an innocent?

What is said to help: a fresh secret a picture (a nonce) against one secret an account, and the evidence of several
pictures together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import stats

from diffmark.secret import Bits
from diffmark.statistics import per_try
from security.lab import SEED, Lab
from security.measuring import ACCOUNTS, FPR, RATE, Row, Tasks, named, p_of, share

COLLUDERS = (2, 3, 5, 10)
Margins = NDArray[np.floating[Any]]
TOGETHER = 3  # pictures whose evidence is taken together
INNOCENT = 2000  # accounts that had nothing to do with it


def tasks(lab: Lab) -> Tasks:
    for count in COLLUDERS:
        for fresh in (False, True):
            kind = "fresh secrets" if fresh else "one secret an account"
            yield f"collusion of {count}, {kind}", partial(_collusion, lab, count, fresh)


@cache
def _copies(lab: Lab, account: int, fresh: bool) -> tuple[list[NDArray[np.float32]], Bits]:
    """Pictures as one account got them, and their secrets: always its own, or a fresh one a picture."""
    covers = lab.covers("test")
    secrets = lab.secrets(100 + account, len(covers))
    if not fresh:
        secrets = np.repeat(secrets[:1], len(covers), axis=0)
    names = (f"account-{account}-{number}" for number in range(len(covers)))
    marked = [lab.kept(lab.private, *one) for one in zip(covers, secrets, names, strict=True)]
    return [np.asarray(image, np.float32) for image in marked], secrets


def _collusion(lab: Lab, count: int, fresh: bool) -> Row:
    """The mean of the copies of `count` accounts, one picture at a time and TOGETHER at a time."""
    held = [_copies(lab, account, fresh) for account in range(count)]
    return mixture(held, lambda image: lab.private.read(image).margins, fresh)


def mixture(
    held: Sequence[tuple[list[NDArray[np.float32]], Bits]],
    read: Callable[[Image.Image], Margins],
    fresh: bool,
) -> Row:
    """The row of accounts that hold copies of the same pictures, with a secret for each."""
    count = len(held)
    mixed = [np.mean(some, axis=0) for some in zip(*(images for images, _ in held), strict=True)]
    images = [Image.fromarray(np.rint(one).astype(np.uint8)) for one in mixed]
    margins = np.stack([read(image) for image in images])
    innocent = np.random.default_rng([SEED, 9]).integers(2, size=(INNOCENT, margins.shape[1]), dtype=np.uint8)
    groups = [np.arange(i, i + TOGETHER) for i in range(0, len(images) - TOGETHER + 1, TOGETHER)]
    return {
        "colluders": count,
        "secrets": "a fresh one a picture" if fresh else "one an account",
        "images": len(images),
        "someone_found": share(
            any(p_of(m, own[i][None]) <= FPR for _, own in held) for i, m in enumerate(margins)
        ),
        "someone_named": share(any(named(m, own[i]) for _, own in held) for i, m in enumerate(margins)),
        "together": TOGETHER,
        "someone_named_by_pictures_together": share(
            any(_together(margins[group], own[group], fresh) for _, own in held) for group in groups
        ),
        "innocent_named": share(any(named(m, secret) for secret in innocent) for m in margins),
    }


def _together(margins: Margins, secrets: Bits, fresh: bool) -> bool:
    """Whether several pictures name an account together.

    With one secret an account their margins are summed. With fresh secrets it is not known which of an account's
    belongs to which picture: its best is taken in each, counted as so many tries, and the p-values are combined
    (Fisher).
    """
    if not fresh:
        return named(margins.sum(axis=0), secrets[0])
    p_values = [p_of(one, secrets, len(secrets)) for one in margins]
    combined = stats.chi2.sf(-2 * np.sum(np.log(p_values)), 2 * len(p_values))
    return bool(combined <= per_try(RATE, ACCOUNTS))
