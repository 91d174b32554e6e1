"""Exact search straight from the rows, through the database's own expression indexes: needs no cache."""

from __future__ import annotations

import numpy as np
from sqlalchemy import Connection

from diffmark.registry.index import PART_MASKS, PARTS, STARTS, WIDTHS, Limits, certified_search, part_patterns
from diffmark.registry.query import LENGTH, Hits, Query, ordered
from diffmark.registry.scan import scan_blocks
from diffmark.registry.store import Store

MAX_VALUES = 20_000  # part values in one statement
BUCKET_COST = 3.0  # rows that could be read in the time that one bucket is opened, in a database


def search_rows(
    store: Store, connection: Connection, query: Query, top: int, within: int | None = None
) -> tuple[Hits, str]:
    """The best `top` keys (cost at most `within`) and how they were found."""
    count = store.count(connection)
    costs, found = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)

    def look(seen: Limits, limits: Limits, worst: int) -> Hits:
        nonlocal costs, found
        for part, (start, width) in enumerate(zip(STARTS, WIDTHS, strict=True)):
            patterns = part_patterns(query.weights[PARTS[part]], seen[part], limits[part])
            shift = np.uint64(LENGTH - start - width)
            values = ((np.uint64(query.bits) & PART_MASKS[part]) >> shift) ^ patterns
            for first in range(0, len(values), MAX_VALUES):
                keys = store.in_buckets(connection, part, values[first : first + MAX_VALUES])
                here = query.costs(keys)
                both = np.concatenate([found, keys[here <= worst]])
                both, places = np.unique(both, return_index=True)  # parts overlap: each key once
                costs, found = ordered(np.concatenate([costs, here[here <= worst]])[places], both, top)
        return costs, found

    hits = certified_search(look, query, top, within, count, max(count, 10_000), BUCKET_COST)
    if hits is not None:
        return hits, "rows (index)"
    return scan_blocks(store.keys(connection), query, top, within), "rows (scan)"
