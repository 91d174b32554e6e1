"""Exact tests for decoded bits: how likely is this agreement if the image carries no mark?

Under the null hypothesis every decoded bit agrees with a given secret with probability 1/2, independently.
Nothing here needs torch: the registry, the server and the report import it on their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

WEIGHT_BITS = 4  # resolution of the soft test: |margin| becomes an integer in 0 ... 15


# --- one secret, hard bits ---------------------------------------------------------------------------------


def to_margins(logits: Any) -> Any:
    """Logit of 1 minus logit of 0, (..., L, 2) -> (..., L); of arrays and of tensors."""
    return logits[..., 1] - logits[..., 0]


def to_logits(margins: ArrayLike) -> NDArray[np.float32]:
    """Logits with these margins, (..., L) -> (..., L, 2)."""
    half = np.asarray(margins, np.float32) / 2
    return np.stack([-half, half], axis=-1)


@lru_cache(maxsize=4096)
def match_tail(matches: int, length: int) -> float:
    """P(X >= matches) for X ~ Binomial(length, 1/2), from exact integer arithmetic."""
    if not 0 <= matches <= length:
        raise ValueError(f"matches must lie in 0 ... {length}, got {matches}")
    return sum(math.comb(length, k) for k in range(matches, length + 1)) / 2**length


@lru_cache(maxsize=4096)
def match_threshold(length: int, fpr: float) -> int:
    """The smallest number of matching bits whose tail probability is at most `fpr`."""
    _check_rate(fpr, "fpr")
    for matches in range(length + 1):
        if match_tail(matches, length) <= fpr:
            return matches
    raise ValueError(f"{length} bits cannot reach a false-positive rate of {fpr:g}: the least is 2^-{length}")


# --- one secret, soft bits ---------------------------------------------------------------------------------


def soft_weights(margins: ArrayLike) -> NDArray[np.int64]:
    """Integer weight of each bit from its logit margin, shape (..., L) -> (..., L).

    |margin| is clipped at its median, so that a few large margins cannot outvote the rest, and quantised to
    `WEIGHT_BITS` bits. Margins that are all zero weigh one each: the soft test is then the hard one.
    """
    size = np.abs(np.asarray(margins, dtype=np.float64))
    if not np.isfinite(size).all():
        raise ValueError("margins must be finite numbers")
    top = 2**WEIGHT_BITS - 1
    median = np.median(size, axis=-1, keepdims=True)
    # A median of zero leaves no scale: fall back to the largest margin, and to equal weights if that is zero.
    scale = np.where(median > 0, median, size.max(axis=-1, keepdims=True))
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = np.rint(np.minimum(size, scale) / scale * top)
    return np.where(scale > 0, weights, 1).astype(np.int64)


def soft_cost(bits: ArrayLike, secret: ArrayLike, weights: ArrayLike) -> int:
    """Sum of the weights of the bits that disagree; 0 is a perfect match."""
    return int(np.sum(np.asarray(weights) * (np.asarray(bits) != np.asarray(secret))))


def soft_distribution(weights: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """P(cost <= c) for c = 0 ... sum(weights) when every bit disagrees with probability 1/2.

    Dynamic programme over the integer weights; every term is positive, so small tails keep their precision.
    """
    weights = np.asarray(weights, dtype=np.int64)
    if weights.ndim != 1 or (weights < 0).any():
        raise ValueError("weights must be a vector of integers that are not negative")
    mass = np.zeros(int(weights.sum()) + 1)
    mass[0] = 1.0
    for weight in weights:
        shifted = np.zeros_like(mass)
        shifted[weight:] = mass[: len(mass) - weight]
        mass = 0.5 * (mass + shifted)
    return np.minimum(np.cumsum(mass), 1.0)


def soft_tail(cost: int, weights: Sequence[int] | NDArray[np.int64]) -> float:
    """P(cost of a random secret <= cost): the p-value of the soft test."""
    if cost < 0:
        raise ValueError(f"cost must not be negative, got {cost}")
    distribution = soft_distribution(weights)
    return float(distribution[min(int(cost), len(distribution) - 1)])


# --- many keys, many tries ---------------------------------------------------------------------------------


def family_wise(p_value: float, tries: int) -> float:
    """Probability of at least one p-value this small among `tries` independent ones: 1 - (1 - p)^tries."""
    if tries < 1:
        raise ValueError(f"tries must be at least 1, got {tries}")
    if not 0 <= p_value <= 1:
        raise ValueError(f"a p-value lies between 0 and 1, got {p_value}")
    return 1.0 if p_value == 1 else -math.expm1(tries * math.log1p(-p_value))


def per_try(rate: float, tries: int) -> float:
    """The p-value that each of `tries` tests may have so that the family-wise error is at most `rate`."""
    _check_rate(rate, "rate")
    if tries < 1:
        raise ValueError(f"tries must be at least 1, got {tries}")
    return -math.expm1(math.log1p(-rate) / tries)


# --- rates measured on images ------------------------------------------------------------------------------


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact confidence interval of a rate."""
    from scipy.special import betaincinv  # keeps `import diffmark.statistics` light

    _check_rate(confidence, "confidence")
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"need 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    half = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, half))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1 - half))
    return low, high


def empirical_threshold(negatives: ArrayLike, fpr: float) -> float:
    """The smallest score t among `negatives` such that the share of negatives with score > t is at most `fpr`.

    An image counts as marked when its score is strictly greater, so ties never exceed the stated rate.
    """
    scores = np.sort(np.asarray(negatives, dtype=np.float64))[::-1]
    if scores.size == 0:
        raise ValueError("a threshold needs at least one negative")
    _check_rate(fpr, "fpr")
    return float(scores[min(int(fpr * scores.size), scores.size - 1)])


@dataclass(frozen=True)
class Rate:
    """A measured rate with its exact 95% interval and the threshold it was measured at."""

    value: float
    low: float
    high: float
    threshold: float


def tpr_at_fpr(positives: ArrayLike, negatives: ArrayLike, fpr: float) -> Rate:
    """True-positive rate at the empirical threshold of `negatives` (higher score = marked)."""
    scores = np.asarray(positives, dtype=np.float64)
    threshold = empirical_threshold(negatives, fpr)
    hits = int((scores > threshold).sum())
    return Rate(hits / scores.size, *clopper_pearson(hits, scores.size), threshold)


def roc(positives: ArrayLike, negatives: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """False- and true-positive rates at every threshold (score > t), from (0, 0) to (1, 1)."""
    positive, negative = np.sort(np.asarray(positives, float)), np.sort(np.asarray(negatives, float))
    if positive.size == 0 or negative.size == 0:
        raise ValueError("a ROC curve needs at least one positive and one negative")
    thresholds = np.append(np.unique(np.concatenate([positive, negative]))[::-1], -np.inf)
    tpr = 1 - np.searchsorted(positive, thresholds, side="right") / positive.size
    fpr = 1 - np.searchsorted(negative, thresholds, side="right") / negative.size
    return fpr, tpr


def auc(positives: ArrayLike, negatives: ArrayLike) -> float:
    """Area under the ROC curve; ties count one half."""
    fpr, tpr = roc(positives, negatives)
    return float(np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2))


def _check_rate(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
