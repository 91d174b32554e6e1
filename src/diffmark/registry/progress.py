"""What takes long is said: a bar for work, a line for waiting. What does not is done in silence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
SHORT_BLOCKS = 8  # blocks: up to here it is done before anybody looks
SILENT_SECONDS = 2.0  # seconds that are waited without a word
log = logging.getLogger("diffmark.registry")


def watched(items: Iterable[Item], what: str, total: int) -> Iterable[Item]:
    """The same items, behind a bar if there are many."""
    if total <= SHORT_BLOCKS:
        return items
    from diffmark.progress import track

    return track(items, what, total)


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Logs a warning, which goes to stderr by default, if what is inside takes over `SILENT_SECONDS`."""
    timer = threading.Timer(SILENT_SECONDS, log.warning, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
