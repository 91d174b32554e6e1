"""New keys: from the operating system's random source, none nearer than 8 bits to another issued key."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from diffmark.registry import query as queries
from diffmark.registry.errors import RegistryError
from diffmark.registry.query import Keys
from diffmark.registry.rowsearch import search_rows
from diffmark.registry.scan import kernels
from diffmark.registry.store import Store

MIN_DISTANCE = 8  # bits between any two keys: up to 3 errors never lead to another account
MAX_LOOKUPS = 32  # new keys that are looked up in the database's indexes; more are compared in memory
MAX_DRAWS = 100  # at 1e8 keys one draw in 260 is repeated; a hundred in a row never are


def draw(count: int) -> Keys:
    """Random keys, shape (count,)."""
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64).copy()


def allocate(store: Store, connection: Connection, count: int) -> Keys:
    """`count` new keys, each at least MIN_DISTANCE bits from all issued ones and from each other.

    Inside the caller's write transaction: no other process can issue a key in between.
    """
    keys = draw(count)
    for _ in range(MAX_DRAWS):
        near = too_near(store, connection, keys)
        if not near.any():
            return keys
        keys[near] = draw(int(near.sum()))
    raise RegistryError(
        f"no {count} keys that are {MIN_DISTANCE} bits apart were found in {MAX_DRAWS} draws: "
        "is the operating system's random source broken?"
    )


def too_near(store: Store, connection: Connection, keys: Keys) -> NDArray[np.bool_]:
    """Which of `keys` are nearer than MIN_DISTANCE to an issued key or to another of `keys`."""
    if len(keys) <= MAX_LOOKUPS or kernels() is None:
        near = np.zeros(len(keys), dtype=bool)
        for i, key in enumerate(keys):
            query = queries.from_bits(int(key))
            earlier = len(keys[:i]) and query.costs(keys[:i]).min() < MIN_DISTANCE
            near[i] = earlier or len(search_rows(store, connection, query, 1, MIN_DISTANCE - 1)[0][0])
        return near
    near = np.zeros(len(keys), dtype=bool)
    new = [grouped(keys, part) for part in range(4)]
    for part in range(4):
        mark(new[part], new[part], near, itself=True)
    for issued in store.keys(connection):
        for part in range(4):
            mark(grouped(issued, part), new[part], near)
    return near


Group = tuple[
    Keys, NDArray[np.uint32], NDArray[np.uint32]
]  # keys ordered by 16 of their bits, offsets, positions


def grouped(keys: Keys, part: int) -> Group:
    """The keys ordered by one of four parts of 16 bits: seven errors leave one part with at most one."""
    values = (keys >> np.uint64(16 * part)).astype(np.uint16)
    order = np.argsort(values, kind="stable")
    offsets = np.searchsorted(values[order], np.arange(1 << 16, dtype=np.uint16))
    return keys[order], np.append(offsets, len(keys)).astype(np.uint32), order.astype(np.uint32)


def mark(others: Group, new: Group, near: NDArray[np.bool_], itself: bool = False) -> None:
    """Mark the new keys that are near to one of the others in this part's grouping."""
    compiled = kernels()
    assert compiled is not None
    compiled.mark_near(others[0], others[1], *new, MIN_DISTANCE, itself, near)
