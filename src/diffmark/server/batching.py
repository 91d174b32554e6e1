"""Micro-batching: images of concurrent requests are decoded together; a full queue says so instead of growing."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from diffmark.images import Picture

if TYPE_CHECKING:
    from diffmark.detection.latent import Detector


class OverloadError(RuntimeError):
    """The queue is full: come back later."""


class Batcher:
    """One thread that decodes; `submit` gives a future of logits under each key, (K, L, 2)."""

    def __init__(self, detector: Detector, capacity: int = 256, wait: float = 0.005) -> None:
        self.detector, self.wait = detector, wait
        self._queue: queue.Queue[tuple[Picture, Future[np.ndarray]] | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._run, name="diffmark-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, picture: Picture) -> Future[np.ndarray]:
        """`picture` is at the codec's native size."""
        future: Future[np.ndarray] = Future()
        try:
            self._queue.put_nowait((picture, future))
        except queue.Full:
            raise OverloadError(f"{self._queue.maxsize} images are waiting already") from None
        return future

    def close(self) -> None:
        """Finish what is queued and stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = [first], False
            while len(batch) < self.detector.batch_size:
                try:
                    item = self._queue.get(timeout=self.wait)
                except queue.Empty:
                    break
                if item is None:
                    last = True
                    break
                batch.append(item)
            self._decode([pair for pair in batch if pair[1].set_running_or_notify_cancel()])
            if last:
                return

    def _decode(self, batch: list[tuple[Picture, Future[np.ndarray]]]) -> None:
        if not batch:
            return
        try:
            rows = self.detector.logits_by_key(np.stack([picture.pixels() for picture, _ in batch]))
        except Exception as error:  # whoever waits must hear of it, and the thread must live on
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), row in zip(batch, rows, strict=True):
            future.set_result(row)
