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
from security.measuring import ACCOUNTS, FPR, RATE, Row, Tasks, named, p_of, share
from security.testbed import SEED, Testbed

COLLUDERS = (2, 5, 10)
Margins = NDArray[np.floating[Any]]
COPIES = 12  # pictures that each account has got
TOGETHER = (3, 6)  # pictures whose evidence is taken together
INNOCENT = 1000  # accounts that had nothing to do with it


def tasks(testbed: Testbed) -> Tasks:
    for count in COLLUDERS:
        for fresh in (False, True):
            kind = "fresh secrets" if fresh else "one secret an account"
            yield f"collusion of {count}, {kind}", partial(_collusion, testbed, count, fresh)


@cache
def _copies(testbed: Testbed, account: int, fresh: bool) -> tuple[list[Image.Image], Bits]:
    """Pictures as one account got them, and their secrets: always its own, or a fresh one a picture."""
    covers = testbed.covers("test")[:: max(1, len(testbed.covers("test")) // COPIES)]
    secrets = testbed.secrets(100 + account, len(covers))
    if not fresh:
        secrets = np.repeat(secrets[:1], len(covers), axis=0)
    names = (f"account-{account}-{number}" for number in range(len(covers)))
    return [testbed.kept(testbed.private, *one) for one in zip(covers, secrets, names, strict=True)], secrets


def _collusion(testbed: Testbed, count: int, fresh: bool) -> Row:
    """The mean of the copies of `count` accounts, one picture at a time and several at a time."""
    copies, held = zip(*(_copies(testbed, account, fresh) for account in range(count)), strict=True)
    images = [averaged(some) for some in zip(*copies, strict=True)]
    return mixture(images, held, lambda image: testbed.private.read(image).margins, fresh)


def averaged(copies: Sequence[Image.Image]) -> Image.Image:
    """The mean of pictures."""
    return Image.fromarray(
        np.rint(np.mean([np.asarray(one, float) for one in copies], axis=0)).astype(np.uint8)
    )


def mixture(
    images: Sequence[Image.Image],
    held: Sequence[Bits],
    read: Callable[[Image.Image], Margins],
    fresh: bool,
) -> Row:
    """The row of accounts that mixed their copies into `images`; `held` are the secrets of each in its copies."""
    count = len(held)
    margins = np.stack([read(image) for image in images])
    innocent = np.random.default_rng([SEED, 9]).integers(2, size=(INNOCENT, margins.shape[1]), dtype=np.uint8)
    row: Row = {
        "colluders": count,
        "secrets": "a fresh one a picture" if fresh else "one an account",
        "images": len(images),
        "someone_found": share(
            any(p_of(m, own[i][None]) <= FPR for own in held) for i, m in enumerate(margins)
        ),
        "someone_named": share(any(named(m, own[i]) for own in held) for i, m in enumerate(margins)),
        "innocent_named": share(any(named(m, secret) for secret in innocent) for m in margins),
    }
    for number in TOGETHER:
        groups = [slice(i, i + number) for i in range(0, len(images) - number + 1, number)]
        if groups:
            row[f"someone_named_by_{number}"] = share(
                any(_together(margins[group], own[group], fresh) for own in held) for group in groups
            )
    return row


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
