"""A bar for what takes long, none for what does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")
SHORT = 8  # blocks: up to here it is done before anybody looks


def watched(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The same items, behind a bar if there are many."""
    if total <= SHORT:
        return items
    from diffmark.progress import track

    return track(items, what, total)
