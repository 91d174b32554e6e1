"""Fingerprints of marked images, kept beside the keys: what is asked when a picture's mark is not read.

And when it is read: a mark can be copied to another picture, which does not look like the one it was made for.

A fingerprint is four words of 64 bits. Those that differ in at most t bits agree in one word up to t / 4 bits, so
the exact search for keys finds the candidates, word by word, and they are then compared as a whole.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, insert, select

from diffmark.fingerprint import ALGORITHM, THRESHOLD, Words, fingerprint, fingerprints
from diffmark.images import ImageLike
from diffmark.registry import schema
from diffmark.registry.errors import RegistryError
from diffmark.registry.query import Query, from_bits
from diffmark.registry.scan import scan

if TYPE_CHECKING:
    from diffmark.registry.registry import Registry

WORDS = 4
NEAR = 256  # candidates of one word and one view
PAGE = 100_000  # rows that are read at a time


@dataclass(frozen=True)
class Match:
    """A logged picture that looks like the one asked for."""

    principal: str
    distance: int  # bits of 256
    algorithm: str = ALGORITHM


def compared(distance: int) -> str:
    """For people: what a distance says of the picture that a key was read in."""
    if distance <= THRESHOLD:
        return (
            f"the picture looks like the one that this key was written into ({distance} of 256 bits differ)"
        )
    return (
        f"the picture does not look like the one that this key was written into ({distance} of 256 bits differ): "
        "cropped, rotated or changed since, or a mark copied to another picture"
    )


class Fingerprints:
    """The fingerprints of one registry, for one actor; a copy in memory follows the rows."""

    def __init__(self, registry: Registry) -> None:
        self.store, self.access = registry.store, registry.access
        self._lock = threading.Lock()
        self._words = np.empty((0, WORDS), np.uint64)
        self._keys = np.empty(0, np.int64)

    def of(self, registry: Registry) -> Fingerprints:
        """Those of another actor at the same registry; only for logging, for its copy in memory is empty."""
        return Fingerprints(registry)

    def log(self, image: ImageLike, key: Any, reason: str = "") -> None:
        """Keep the fingerprint of an image that carries an issued key (operator)."""
        self.log_words(fingerprint(image), key, reason)

    def log_words(self, words: Words, key: Any, reason: str = "") -> None:
        """The same for a fingerprint, (4,)."""
        bits = from_bits(key).bits
        with self.access.call("log fingerprint", reason) as connection:
            rows = self.store.rows_of(connection, [bits])
            if bits not in rows:
                raise RegistryError("this secret is not a key of the registry: issue one first")
            table = schema.fingerprints
            number = (connection.scalar(select(func.max(table.c.id))) or 0) + 1
            values = {f"word_{i}": int(word) for i, word in enumerate(words.astype(np.int64))}
            connection.execute(
                insert(table).values(id=number, key_id=rows[bits].id, created=schema.now(), **values)
            )
            self.access.record(connection, "log fingerprint", reason, number, True)

    def known(self, image: ImageLike) -> bool:
        """Whether a picture like this one was marked here. Tells nothing of whose it is, and logs nothing."""
        return bool(self._nearest(fingerprints(image))[0] <= THRESHOLD)

    def find(self, image: ImageLike, reason: str = "") -> Match | None:
        """The nearest picture that was marked here, if it is near enough (auditor)."""
        distance, number = self._nearest(fingerprints(image))
        with self.access.call("identify", reason) as connection:
            principal = None
            if distance <= THRESHOLD:
                table = schema.keys
                principal = connection.scalar(select(table.c.principal).where(table.c.id == number))
            self.access.record(connection, "identify", reason, ["fingerprint"], principal)
        return None if principal is None else Match(principal, distance)

    def distance(self, image: ImageLike, key: Any) -> int | None:
        """Bits by which a picture that carries an issued key differs from the nearest one that was marked with it.

        None if none was logged. Tells nothing that the key does not, and logs nothing.
        """
        bits = from_bits(key).bits
        with self.store.read() as connection:
            rows = self.store.rows_of(connection, [bits])
        self._follow()
        own = self._words[self._keys == rows[bits].id] if bits in rows else self._words[:0]
        if not len(own):
            return None
        return int(np.bitwise_count(own[:, None] ^ fingerprints(image)[None]).sum(axis=2).min())

    def __len__(self) -> int:
        self._follow()
        return len(self._words)

    def _nearest(self, views: Words) -> tuple[int, int]:
        """Bits that differ from the nearest fingerprint, and the number of its key; 257 if none is near."""
        self._follow()
        words, keys = self._words, self._keys
        return nearest(words, keys, views) if len(words) else (64 * WORDS + 1, 0)

    def _follow(self) -> None:
        """Read the rows that came since."""
        table = schema.fingerprints
        with self._lock:
            with self.store.read() as connection:
                last = connection.scalar(select(func.max(table.c.id))) or 0
                pages = [
                    connection.execute(
                        select(table)
                        .where(table.c.id > start, table.c.id <= start + PAGE)
                        .order_by(table.c.id)
                    ).all()
                    for start in range(len(self._words), last, PAGE)
                ]
            rows = [row for page in pages for row in page]
            if rows:
                new = np.array([[row[2 + i] for i in range(WORDS)] for row in rows], np.int64)
                self._keys = np.concatenate([self._keys, [row[1] for row in rows]])
                self._words = np.asfortranarray(np.concatenate([self._words, new.view(np.uint64)]))


def nearest(words: Words, keys: NDArray[np.int64], views: Words) -> tuple[int, int]:
    """The least distance up to THRESHOLD between fingerprints (n, 4) and views (v, 4), and its key."""
    best, number = 64 * WORDS + 1, 0
    for i in range(WORDS):
        column = np.ascontiguousarray(words[:, i])
        queries = [_query(int(view[i])) for view in views]
        for view, (_, found) in zip(views, scan(column, queries, NEAR, THRESHOLD // WORDS), strict=True):
            if not len(found):
                continue
            full = len(found) == NEAR  # there may be more: all are compared
            rows = np.arange(len(words)) if full else np.flatnonzero(np.isin(column, found))
            different = np.ascontiguousarray(words[rows] ^ view)
            distances = np.unpackbits(different.view(np.uint8), axis=1).sum(axis=1)
            place = int(distances.argmin())
            if distances[place] < best:
                best, number = int(distances[place]), int(keys[rows[place]])
    return best, number


def _query(word: int) -> Query:
    return from_bits(np.array([word >> (63 - bit) & 1 for bit in range(64)], np.uint8))
