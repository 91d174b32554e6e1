"""What every experiment measures, and how the strength of an attack is chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pictures import Row
from PIL import Image

from diffmark.detection.decision import Detection
from diffmark.evaluation.visibility import ssimulacra2
from diffmark.pixel.visibility import Visibility
from diffmark.secret import Bits
from diffmark.statistics import clopper_pearson, family_wise, per_try, soft_cost, soft_tail, soft_weights

FPR = 1e-3  # of the verdict with the secret
ACCOUNTS, RATE = 10**6, 1e-6  # of the verdict that names one of so many accounts, family-wise
LEAST_QUALITY = 60.0  # SSIMULACRA2 of an attacked picture that is still worth having
REMOVED = 0.1  # share still found at which a removal has won
SCORED = 8  # pictures of a row that the metric itself is taken of

Images = Sequence[Image.Image]
Tasks = Iterable[tuple[str, Callable[[], Row]]]  # rows by name; each is made when it is called


def p_of(margins: NDArray[np.floating[Any]], secrets: Bits, tries: int = 1) -> float:
    """The soft p-value of the best of an account's secrets, counted as so many tries."""
    weights, bits = soft_weights(margins), (margins > 0).astype(np.uint8)
    return family_wise(min(soft_tail(soft_cost(bits, secret, weights), weights) for secret in secrets), tries)


def named(margins: NDArray[np.floating[Any]], secret: Bits, tries: int = 1) -> bool:
    """Whether a registry of ACCOUNTS keys would name this one."""
    return p_of(margins, secret[None], tries) <= per_try(RATE, ACCOUNTS)


def share(values: Iterable[bool]) -> Row:
    """A rate with its exact interval."""
    hits = [bool(value) for value in values]
    low, high = clopper_pearson(sum(hits), len(hits))
    return {"rate": round(sum(hits) / len(hits), 4), "interval_95": [round(low, 4), round(high, 4)]}


def figures(found: Sequence[Detection], secrets: Bits) -> Row:
    """Of what the detector found in pictures with these secrets."""
    pairs = list(zip(found, secrets, strict=True))
    return {
        "images": len(pairs),
        "accuracy": round(float(np.mean([one.bits == secret for one, secret in pairs])), 4),
        "found": share(one.marked for one in found),
        "named": share(named(one.margins, secret, one.tries) for one, secret in pairs),
    }


Metric = Callable[[Image.Image, Image.Image], float]


def estimated(before: Image.Image, after: Image.Image) -> float:
    """The pixel layer's estimate of SSIMULACRA2: quick, for choosing strengths."""
    return Visibility(before).ssimulacra2(after)


def left(after: Images, *references: Images, metric: Metric = estimated) -> float:
    """What quality is left: against the marked picture, or the unmarked one if it is nearer to that."""
    return max(
        float(np.mean([metric(a, b) for a, b in zip(before, after, strict=True)])) for before in references
    )


def quality(before: Images, after: Images, covers: Images | None = None) -> Row:
    """SSIMULACRA2 and PSNR of what was changed, for reports; SSIMULACRA2 against the unmarked picture as well."""
    spread = np.unique(np.linspace(0, len(before) - 1, SCORED).astype(int))
    errors = [
        np.mean((np.asarray(a, float) - np.asarray(b)) ** 2) for a, b in zip(before, after, strict=True)
    ]
    row: Row = {
        "ssimulacra2": round(float(np.mean([ssimulacra2(before[i], after[i]) for i in spread])), 1),
        "psnr": round(float(10 * np.log10(255**2 / np.mean(errors))), 1) if any(errors) else None,
    }
    if covers is not None:
        score = np.mean([ssimulacra2(covers[i], after[i]) for i in spread])
        row["ssimulacra2_to_unmarked"] = round(float(score), 1)
    return row


def least_removing(
    strengths: Sequence[float], tried: Callable[[float], tuple[float, float]], least: float = LEAST_QUALITY
) -> float:
    """The least strength that removes, else the one with the fewest found in good quality.

    `tried` says, on tune pictures, which share is still found and what quality is left.
    """
    chosen, best = strengths[0], 2.0
    for strength in strengths if len(strengths) > 1 else ():
        rate, good = tried(strength)
        if good < least and best < 2.0:
            break
        if rate <= best:
            best, chosen = rate, strength
        if best <= REMOVED:
            break
    return chosen


def most_found(
    strengths: Sequence[float], tried: Callable[[float], tuple[float, float]], least: float = LEAST_QUALITY
) -> float:
    """The strength of a forgery that is found most often among those that leave a good picture."""
    rated = {strength: tried(strength) for strength in strengths}
    good = [strength for strength in strengths if rated[strength][1] >= least] or [strengths[0]]
    return max(good, key=lambda strength: rated[strength][0])
