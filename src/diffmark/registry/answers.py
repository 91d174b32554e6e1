"""Answers: ranked candidates with exact error probabilities, and a verdict at a stated family-wise rate.

The p-value of a candidate is the probability that one random key is at least as near to the decoded bits: by
the number of agreeing bits for a hard query, by the soft cost for a soft one. Family-wise: that at least one of
all N keys is. If even the best candidate could well be chance, the verdict is "no significant match".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diffmark.registry.errors import RegistryError
from diffmark.registry.query import Hits, Query
from diffmark.statistics import family_wise

RATE = 1e-6  # default family-wise error


@dataclass(frozen=True)
class Candidate:
    """One key near to the decoded bits."""

    key: str  # 16 hex digits
    principal: str
    status: str  # live, revoked or expired: pictures outlive their key
    distance: int  # bits that disagree
    cost: int  # sum of the weights of the bits that disagree; the distance for a hard query
    score: float  # share of the weight that agrees, 0 ... 1
    p_value: float
    family_wise: float
    context: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Whom the evidence names, if anyone. `principal` is None for "no significant match"."""

    principal: str | None
    family_wise: float
    rate: float | None  # None in a closed set, where the best candidate is always named
    significant: int  # candidates within the rate: more than one points to mixed or colluding sources

    def __bool__(self) -> bool:
        return self.principal is not None

    def __str__(self) -> str:
        if self.principal is None:
            return f"no significant match (family-wise error {self.family_wise:.2g}, allowed {self.rate:g})"
        assumed = "" if self.rate is not None else " (best of a closed set)"
        return f"{self.principal}, family-wise error {self.family_wise:.2g}{assumed}"


@dataclass(frozen=True)
class Identification:
    """The answer to one query."""

    candidates: tuple[Candidate, ...]
    verdict: Verdict
    keys: int  # how many keys were compared
    soft: bool
    path: str  # how the search was done

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"answer": str(self.verdict)}


def answer(
    query: Query,
    hits: Hits,
    rows: dict[int, Any],
    keys: int,
    rate: float | None,
    moment: int,
    path: str,
    tries: int = 1,
) -> Identification:
    """Candidates and verdict for the best keys of one query; rate None is the closed set.

    `tries` counts the ways in which the image is read, each with every key: the family-wise error counts them all.
    """
    if keys < 1:
        raise RegistryError("the registry holds no keys: issue or import some first")
    if rate is not None and not 0 < rate < 1:
        raise ValueError(f"rate is a family-wise error between 0 and 1, got {rate}")
    total = max(int(query.weights.sum()), 1)
    candidates = []
    for cost, key in zip(hits[0].tolist(), hits[1].tolist(), strict=True):
        p_value = float(query.distribution[cost])
        row = rows[key]
        candidates.append(
            Candidate(
                key=f"{key:016x}",
                principal=row.principal,
                status=status(row, moment),
                distance=(key ^ query.bits).bit_count(),
                cost=cost,
                score=1 - cost / total,
                p_value=p_value,
                family_wise=family_wise(p_value, keys * tries),
                context=row.context,
            )
        )
    if not candidates:  # nothing within the cost that was asked for
        return Identification((), Verdict(None, 1.0, rate, 0), keys, not query.hard, path)
    best = candidates[0].family_wise
    significant = sum(rate is None or candidate.family_wise <= rate for candidate in candidates)
    named = candidates[0].principal if rate is None or best <= rate else None
    verdict = Verdict(named, best, rate, 0 if rate is None else significant)
    return Identification(tuple(candidates), verdict, keys, not query.hard, path)


def status(row: Any, moment: int) -> str:
    """What a key is at a moment."""
    if row.revoked is not None and row.revoked <= moment:
        return "revoked"
    if row.expires is not None and row.expires <= moment:
        return "expired"
    return "live"
