"""A lane: heavy calls run one after the other in a thread of their own, and a full lane says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from typing import TypeVar

from diffmark.server.batching import OverloadError

Result = TypeVar("Result")


class Lane:
    """At most `capacity` calls wait or run; the next one is refused."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.capacity = name, capacity
        self._places = threading.BoundedSemaphore(capacity)
        self._thread = ThreadPoolExecutor(1, f"diffmark-{name}")

    def run(self, call: Callable[[], Result], seconds: float) -> Result:
        """The call's result, or TimeoutError after so many seconds; a call that has not begun then never does."""
        if not self._places.acquire(blocking=False):
            raise OverloadError(f"{self.capacity} requests are in the lane for {self.name} already")
        future = self._thread.submit(call)
        future.add_done_callback(lambda _: self._places.release())
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Finish what runs, drop what waits."""
        self._thread.shutdown(cancel_futures=True)
