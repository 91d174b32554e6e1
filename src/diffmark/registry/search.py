"""The planner: which of the exact searches answers a query soonest. All of them give the same answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diffmark.registry.cache import KeyCache
from diffmark.registry.index import MultiIndex
from diffmark.registry.query import Hits, Keys, Query, ordered
from diffmark.registry.rowsearch import search_rows
from diffmark.registry.scan import blocks_of, kernels, scan, scan_blocks
from diffmark.registry.store import Store

MAX_NUMPY_KEYS = (
    200_000  # up to here numpy answers within a few milliseconds, and nothing needs to be compiled
)
MAX_UNINDEXED = 1 << 20  # keys added after the index was built that are scanned rather than indexed
PATHS = ("index", "scan", "numpy", "rows")


class Searcher:
    """Searches one registry. With a cache, keys come from its array; without, straight from the rows."""

    def __init__(self, store: Store, cache: Path | bool, index: bool) -> None:
        self.store = store
        self.lock = threading.Lock()  # threads of a service share one searcher
        self.index: MultiIndex | None = None
        self.wants_index = index
        self.cache: KeyCache | None = None
        if cache is not False:
            self.cache = KeyCache(cache if isinstance(cache, Path) else None, store)

    def search(
        self, queries: Sequence[Query], top: int, within: int | None = None, path: str | None = None
    ) -> tuple[list[Hits], str]:
        """The best `top` keys of each query and the path taken; `path` insists on one of PATHS."""
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        if path not in (None, *PATHS):
            raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}")
        if self.cache is None or path == "rows":
            with self.store.read() as connection:
                answers = [search_rows(self.store, connection, query, top, within) for query in queries]
            return [hits for hits, _ in answers], answers[0][1]
        with self.lock, self.store.read() as connection:
            self.cache.refresh(connection)
            keys = self.cache.keys
        if path == "numpy" or (path is None and (len(keys) <= MAX_NUMPY_KEYS or kernels() is None)):
            return [scan_blocks(blocks_of(keys), query, top, within) for query in queries], "numpy"
        if path == "index" or (path is None and self.wants_index):
            return self._by_index(keys, queries, top, within, np.inf if path else len(keys))
        return scan(keys, queries, top, within), "scan"

    def _by_index(
        self, keys: Keys, queries: Sequence[Query], top: int, within: int | None, budget: float
    ) -> tuple[list[Hits], str]:
        """By the index, and by scan where the index would look at too much to certify its answer."""
        with self.lock:
            if self.index is None or len(keys) - self.index.count > max(MAX_UNINDEXED, self.index.count // 8):
                self.index = MultiIndex(keys)
            index = self.index
        # A batch shares one scan, which then costs each query a fifth: the index must be that much better.
        share = budget if len(queries) < 16 else budget / 5
        certified = [index.search(query, top, within, share) for query in queries]
        missed = [i for i, hits in enumerate(certified) if hits is None]
        scanned = iter(scan(keys, [queries[i] for i in missed], top, within) if missed else [])
        tail = keys[index.count :]  # issued since the index was built
        extra = scan(tail, queries, top, within)
        found = [
            next(scanned) if hits is None else _merged(hits, more, top)
            for hits, more in zip(certified, extra, strict=True)
        ]
        path = "index" if not missed else "scan" if len(missed) == len(queries) else "index and scan"
        return found, path


def _merged(first: Hits, second: Hits, top: int) -> Hits:
    """The best of two answers over different keys."""
    return ordered(np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]), top)
