"""Exact search by looking at every key: compiled where numba is at hand, in numpy blocks where it is not."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from types import ModuleType

import numpy as np

from diffmark.registry.query import Hits, Keys, Query, ordered
from diffmark.statistics import WEIGHT_BITS

NUMPY_BLOCK = 1 << 16  # keys; 512 KiB stay in the L2 cache between the passes
UNLIMITED = 1 << 40  # a cost that no key reaches
_kernels: list[ModuleType | None] = []


def kernels() -> ModuleType | None:
    """The compiled loops, or None without numba. Says so on stderr if the first compilation takes a while."""
    if not _kernels:
        message = "diffmark: preparing the search kernels (compiled once for each installation)"
        notice = threading.Timer(1.0, lambda: print(message, file=sys.stderr))
        notice.daemon = True
        notice.start()
        try:
            from diffmark.registry import kernels as compiled

            _kernels.append(compiled)
        except ImportError:
            _kernels.append(None)
        finally:
            notice.cancel()
    return _kernels[0]


def scan(keys: Keys, queries: Sequence[Query], top: int, within: int | None = None) -> list[Hits]:
    """The best `top` keys of each query (cost at most `within`), compiled; all keys are read once."""
    compiled = kernels()
    if compiled is None:
        return [scan_blocks(blocks_of(keys), query, top, within) for query in queries]
    count = len(queries)
    planes = np.zeros((count, 1 if all(query.hard for query in queries) else WEIGHT_BITS), dtype=np.uint64)
    for row, query in zip(planes, queries, strict=True):
        row[: len(query.planes)] = query.planes
    costs = np.zeros((count, top), dtype=np.int64)
    found = np.zeros((count, top), dtype=np.uint64)
    filled = np.zeros(count, dtype=np.int64)
    compiled.scan(
        np.ascontiguousarray(keys, dtype=np.uint64),
        np.array([query.bits for query in queries], dtype=np.uint64),
        planes,
        UNLIMITED if within is None else within,
        costs,
        found,
        filled,
    )
    return [(costs[q, :n], found[q, :n]) for q, n in enumerate(filled)]


def scan_blocks(blocks: Iterable[Keys], query: Query, top: int, within: int | None = None) -> Hits:
    """The same for one query in numpy, over keys that come in blocks: of an array, or from the rows."""
    costs, found = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    cutoff = UNLIMITED if within is None else within
    for block in blocks:
        here = query.costs(block)
        near = here <= cutoff
        if np.count_nonzero(near) > top:  # few of a first block can stay: do not sort all of it
            near &= here <= np.partition(here[near], top - 1)[top - 1]
        if near.any():
            costs, found = ordered(
                np.concatenate([costs, here[near]]), np.concatenate([found, block[near]]), top
            )
            if len(costs) == top:
                cutoff = min(cutoff, int(costs[-1]))
    return costs, found


def blocks_of(keys: Keys) -> Iterable[Keys]:
    """An array of keys in blocks that fit the processor's cache."""
    return (keys[start : start + NUMPY_BLOCK] for start in range(0, len(keys), NUMPY_BLOCK))
