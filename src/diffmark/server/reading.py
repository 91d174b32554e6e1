"""Reading for many requests at once: pixels on all cores, latents in batches; a full queue says so."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from diffmark.detection.decision import Detection
from diffmark.detection.joint import AnyDetector, better
from diffmark.detection.pixel import PixelDetector, is_clear
from diffmark.images import Picture
from diffmark.secret import Bits
from diffmark.server.batching import Batcher, OverloadError

GUESS = 0.4  # seconds that an image is read in, until some were
PATIENCE = 0.5  # share of a request's time that it may wait for others


class Reading:
    """A detector behind queues: `read` waits its turn, and raises OverloadError if too many wait."""

    def __init__(self, detector: AnyDetector, capacity: int, threads: int = 0) -> None:
        self.detector, self.capacity = detector, capacity
        self.latent = detector.latent
        self.batcher = Batcher(self.latent, capacity) if self.latent else None
        self._places = threading.BoundedSemaphore(capacity)
        self.threads, self.mean = threads or os.cpu_count() or 1, GUESS
        self._pool = ThreadPoolExecutor(self.threads, "diffmark-pixel")

    @property
    def pixel(self) -> PixelDetector:
        """The pixel layer's detector."""
        if self.detector.pixel is None:
            raise ValueError("this service reads latents alone")
        return self.detector.pixel

    @property
    def waiting(self) -> int:
        return self._pool._work_queue.qsize() + (self.batcher.waiting if self.batcher else 0)

    def read(self, pictures: Sequence[Picture], secrets: Bits | None, seconds: float) -> list[Detection]:
        """Detections in the order of the pictures; TimeoutError after so many seconds."""
        if self.detector.pixel is None:
            return self._latent(list(pictures), secrets, seconds)
        question = self.pixel.question(secrets)
        wait = self._pool._work_queue.qsize() * self.mean / self.threads
        if wait > PATIENCE * seconds:
            raise OverloadError(f"images wait for {wait:.0f} s already")
        futures = [self._submit(picture) for picture in pictures]
        deadline = time.monotonic() + seconds
        try:
            readings = [future.result(max(0.0, deadline - time.monotonic())) for future in futures]
        finally:
            for future in futures:  # nobody waits for it any more
                future.cancel()
        found = [
            self.pixel.decide_reading(reading, picture, question)
            for reading, picture in zip(readings, pictures, strict=True)
        ]
        if self.latent is None:
            return found
        unclear = [index for index, reading in enumerate(readings) if not is_clear(reading)]
        second = self._latent([pictures[index] for index in unclear], secrets, seconds)
        for index, other in zip(unclear, second, strict=True):
            found[index] = better(found[index], other)
        return found

    def _submit(self, picture: Picture) -> Future[Any]:
        if not self._places.acquire(blocking=False):
            raise OverloadError(f"{self.capacity} images are waiting already")
        future = self._pool.submit(self._timed, picture)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def _timed(self, picture: Picture) -> Any:
        """A reading; how long it took goes into the mean that waiting is judged by."""
        start = time.perf_counter()
        try:
            return self.pixel.read(picture)
        finally:
            self.mean += 0.2 * (time.perf_counter() - start - self.mean)

    def _latent(self, pictures: list[Picture], secrets: Bits | None, seconds: float) -> list[Detection]:
        assert self.latent is not None
        assert self.batcher is not None
        native = [picture.resized(self.latent.codec.config.image_size) for picture in pictures]
        futures = [self.batcher.submit(picture) for picture in native]
        rows: list[np.ndarray] = [future.result(seconds) for future in futures]
        return [
            self.latent.decide(row, secrets, picture.source, picture.notes)
            for row, picture in zip(rows, native, strict=True)
        ]

    def check(self) -> None:
        """Raise unless the decoder's thread is alive."""
        if self.batcher and not self.batcher._thread.is_alive():
            raise RuntimeError("the decoder's thread has ended")

    def close(self) -> None:
        """Finish what is queued and stop."""
        self._pool.shutdown(cancel_futures=True)
        if self.batcher:
            self.batcher.close()
