"""Multi-index hashing: exact search that looks at a small part of the keys.

A key is cut into three parts of 22, 21 and 21 bits. If every part of a key costs more than c_0, c_1, c_2, the
key costs at least c_0 + c_1 + c_2 + 3. So after all buckets whose part costs at most c_j were looked at, every
key of cost up to c_0 + c_1 + c_2 + 2 was seen: that number is the certificate, for Hamming and soft cost alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from diffmark.progress import track
from diffmark.registry.query import LENGTH, Hits, Keys, Query
from diffmark.registry.scan import kernels

WIDTHS = (22, 21, 21)
STARTS = (0, 22, 43)  # first bit of each part, counted from the most significant
PARTS = tuple(slice(start, start + width) for start, width in zip(STARTS, WIDTHS, strict=True))
MAX_SILENT_KEYS = 10**7  # whose index is built within two seconds
BUCKET_COST = 40.0  # keys that could be scanned in the time that one bucket is opened, in memory


Limits = tuple[int, ...]  # one a part: part costs up to which buckets are looked at; -1 for not at all


@dataclass(frozen=True)
class Reach:
    """How far to look in each part, and the cost up to which that finds every key."""

    limits: Limits
    certified: int
    work: float  # keys looked at and buckets opened, in units of one scanned key


class MultiIndex:
    """Three sorted copies of the keys, rotated so that each part in turn is on top: 24 bytes a key."""

    def __init__(self, keys: Keys) -> None:
        compiled = kernels()
        if compiled is None:
            raise ImportError("the in-memory index needs numba: pip install 'diffmark[registry]'")
        if len(keys) >= 1 << 32:
            raise ValueError(f"one in-memory index holds fewer than 2^32 keys, got {len(keys)}")
        self.compiled = compiled
        self.count = len(keys)
        self.tables: list[Keys] = []
        self.offsets: list[NDArray[np.uint32]] = []
        parts = list(zip(STARTS, WIDTHS, strict=True))
        for start, width in (
            track(parts, "building the index", len(parts)) if len(keys) > MAX_SILENT_KEYS else parts
        ):
            table = rotated(keys, start)
            table.sort()
            offsets = np.empty((1 << width) + 1, dtype=np.uint32)
            compiled.bucket_offsets(table, width, offsets)
            self.tables.append(table)
            self.offsets.append(offsets)

    @property
    def bytes(self) -> int:
        """Memory held by the index."""
        return sum(
            table.nbytes + offsets.nbytes for table, offsets in zip(self.tables, self.offsets, strict=True)
        )

    def search(
        self, query: Query, top: int, within: int | None = None, budget: float = np.inf
    ) -> Hits | None:
        """The best `top` keys (cost at most `within`), or None if that needs more than `budget` work."""
        costs = np.zeros(top, dtype=np.int64)
        found = np.zeros(top, dtype=np.uint64)
        filled = 0

        def look(seen: Limits, limits: Limits, worst: int) -> Hits:
            nonlocal filled
            filled = self._look(query, seen, limits, worst, costs, found, filled)
            return costs[:filled], found[:filled]

        return certified_search(look, query, top, within, self.count, budget)

    def _look(
        self,
        query: Query,
        seen: Limits,
        limits: Limits,
        worst: int,
        costs: NDArray[np.int64],
        found: Keys,
        filled: int,
    ) -> int:
        """Open all buckets between `seen` and `limits`; keys that an earlier table or look finds are skipped."""
        for part, (start, width) in enumerate(zip(STARTS, WIDTHS, strict=True)):
            patterns = part_patterns(query.weights[PARTS[part]], seen[part], limits[part])
            if not len(patterns):
                continue
            others = [other for other in range(len(PARTS)) if other != part]
            filled = self.compiled.probe(
                self.tables[part],
                self.offsets[part],
                start,
                width,
                patterns,
                rotated(np.array([query.bits], dtype=np.uint64), start)[0],
                rotated(query.planes, start),
                worst,
                rotated(PART_MASKS[others], start),
                np.array([limits[other] if other < part else seen[other] for other in others]),
                costs,
                found,
                filled,
            )
        return filled


PART_MASKS = np.array(
    [((1 << width) - 1) << (LENGTH - start - width) for start, width in zip(STARTS, WIDTHS, strict=True)],
    dtype=np.uint64,
)


def rotated(words: Keys, places: int) -> Keys:
    """Each word rotated to the left; always a copy."""
    if places == 0:
        return words.copy()
    return (words << np.uint64(places)) | (words >> np.uint64(LENGTH - places))


def part_patterns(weights: NDArray[np.int64], above: int, up_to: int) -> Keys:
    """All differences of one part whose cost lies in above < cost <= up_to, as numbers of len(weights) bits."""
    patterns, costs = np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.int64)
    if up_to < 0:
        return patterns[:0]
    for place, weight in enumerate(weights):
        kept = costs <= up_to - weight
        bit = np.uint64(1 << (len(weights) - 1 - place))
        patterns = np.concatenate([patterns, patterns[kept] | bit])
        costs = np.concatenate([costs, costs[kept] + weight])
    return patterns[costs > above]


@lru_cache(maxsize=64)
def pattern_counts(weights: tuple[int, ...]) -> NDArray[np.float64]:
    """How many differences of a part cost at most c, c = 0 ... sum of weights."""
    counts = np.zeros(sum(weights) + 1)
    counts[0] = 1
    for weight in weights:
        shifted = np.zeros_like(counts)
        shifted[weight:] = counts[: len(counts) - weight]
        counts = counts + shifted
    return np.cumsum(counts)


def cheapest_reach(counts: list[NDArray[np.float64]], goal: int, keys: int, opening: float) -> Reach:
    """The part costs with the least work among those that certify every key of cost up to `goal`."""
    # Work of looking up to part cost c = -1 ... goal; index 0 stands for not looking at all.
    work = [
        np.concatenate([[0.0], count[np.minimum(np.arange(goal + 1), len(count) - 1)]])
        * (opening + keys / 2**width)
        for count, width in zip(counts, WIDTHS, strict=True)
    ]
    first, second = np.meshgrid(np.arange(goal + 2), np.arange(goal + 2), indexing="ij")
    third = goal + 1 - first - second  # (c_0 + 1) + (c_1 + 1) + (c_2 + 1) = goal + 1
    total = np.where(third >= 0, work[0][first] + work[1][second] + work[2][np.maximum(third, 0)], np.inf)
    a, b = np.unravel_index(np.argmin(total), total.shape)
    return Reach((int(a) - 1, int(b) - 1, goal - int(a) - int(b)), goal, float(total[a, b]))


def reaches(query: Query, top: int, worst: int, count: int, opening: float) -> Iterator[Reach]:
    """Reaches of growing cost: a cheap first look, then where `top` random keys are expected, then further."""
    expected = int(np.searchsorted(query.distribution, (top + 3 * top**0.5 + 3) / max(count, 1)))
    counts = [pattern_counts(tuple(query.weights[part].tolist())) for part in PARTS]
    goal = min(expected // 2, worst)
    while True:
        yield cheapest_reach(counts, goal, count, opening)
        if goal == worst:
            return
        goal = min(expected if goal < expected else goal + max(1, goal // 8), worst)


def certified_search(
    look: Callable[[Limits, Limits, int], Hits],
    query: Query,
    top: int,
    within: int | None,
    count: int,
    budget: float,
    opening: float = BUCKET_COST,
) -> Hits | None:
    """Look further and further until the last answer lies within what is certified; None if past `budget`.

    look(seen, limits, worst) opens the buckets between two reaches and returns the best keys found so far.
    """
    most = len(query.distribution) - 1
    worst = most if within is None else min(within, most)
    seen: Limits = (-1, -1, -1)
    for reach in reaches(query, top, worst, count, opening):
        if reach.work > budget:
            return None
        # A cheaper plan for more may look less far in one part: what was seen stays seen, and counts once.
        limits = tuple(max(old, new) for old, new in zip(seen, reach.limits, strict=True))
        costs, found = look(seen, limits, worst)
        seen = limits
        if len(costs) == top and costs[-1] <= reach.certified:
            break
    return costs, found  # the last reach certifies every cost up to `worst`
