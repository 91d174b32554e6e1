"""Work on several cores by threads: numpy, scipy and Pillow let other threads run while they compute."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Job = TypeVar("Job")
Made = TypeVar("Made")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Job], Made], jobs: Iterable[Job], workers: int
) -> Iterator[tuple[Job, Made | BaseException]]:
    """Jobs and what `work` gave or raised, in their order; as many as there are workers are taken ahead."""
    ahead: deque[tuple[Job, Future[Made]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for job in jobs:
            ahead.append((job, pool.submit(work, job)))
            if len(ahead) > workers:
                first, future = ahead.popleft()
                yield first, future.exception() or future.result()
        for first, future in ahead:
            yield first, future.exception() or future.result()


def one_at_a_time(function: Callable[..., Made]) -> Callable[..., Made]:
    """The same function for several threads, where it is not made for them."""
    lock = threading.Lock()

    def run(*args: Any) -> Made:
        with lock:
            return function(*args)

    return run


def on_all_cores(call: Callable[[Job], Made], items: Sequence[Job]) -> list[Made]:
    """What `call` gives for each item, in their order."""
    workers = min(cores(), len(items))
    if workers < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(call, items))
