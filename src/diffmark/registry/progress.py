"""Bars for what takes long. The library is silent; the command line sets `bar` to its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Item = TypeVar("Item")
SHORT = 8  # blocks: up to here it is done before anybody looks

bar: Callable[[Iterable[Any], str, int | None], Iterable[Any]] | None = None


def watched(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The same items, behind a bar if one is set and there are many."""
    return items if bar is None or total <= SHORT else bar(items, what, total)
