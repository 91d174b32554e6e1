"""Work in lists of a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], size: int = 32) -> Iterator[list[T]]:
    """Lists of up to `size` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
