"""Reading for many requests at once: pixels on all cores, latents in batches; a full queue says so."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from diffmark.detection.decision import Detection, Question
from diffmark.detection.joint import AnyDetector
from diffmark.detection.pixel import PixelDetector
from diffmark.images import Picture
from diffmark.parallel import cores
from diffmark.secret import Bits
from diffmark.server.batching import Batcher, OverloadError

FIRST_SECONDS = 0.1  # seconds that an image is read in, until some were
MAX_WAIT_SHARE = 0.5  # share of a request's time that it may wait for others


class Reading:
    """A detector behind queues: `read` waits its turn, and raises OverloadError if too many wait."""

    def __init__(self, detector: AnyDetector, capacity: int, threads: int = 0) -> None:
        self.detector, self.capacity = detector, capacity
        self.latent = detector.latent
        self.batcher = Batcher(self.latent, capacity) if self.latent else None
        self._places = threading.BoundedSemaphore(capacity)
        self.threads, self.mean = threads or cores(), FIRST_SECONDS
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
        question = self.detector.question(secrets)
        wait = self._pool._work_queue.qsize() * self.mean / self.threads
        if wait > MAX_WAIT_SHARE * seconds:
            raise OverloadError(f"images wait for {wait:.0f} s already")
        deadline = time.monotonic() + seconds

        def results(futures: list[Future[Any]]) -> list[Any]:
            try:
                return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]
            finally:
                for future in futures:  # nobody waits for it any more
                    future.cancel()

        def logits(native: list[Picture]) -> list[np.ndarray]:
            assert self.batcher is not None
            return results([self.batcher.submit(picture) for picture in native])

        outcomes = results([self._submit(picture, question) for picture in pictures])
        return list(self.detector.finish(outcomes, question, logits))  # type: ignore[arg-type]

    def _submit(self, picture: Picture, question: Question) -> Future[Any]:
        if not self._places.acquire(blocking=False):
            raise OverloadError(f"{self.capacity} images are waiting already")
        future = self._pool.submit(self._timed, picture, question)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def _timed(self, picture: Picture, question: Question) -> Any:
        """The first step; how long it took goes into the mean that waiting is judged by."""
        start = time.perf_counter()
        try:
            return self.detector.first(picture, question)
        finally:
            self.mean += 0.2 * (time.perf_counter() - start - self.mean)

    def warm_up(self) -> None:
        """Read an empty picture: what is loaded or derived once is there before the first request."""
        buffer = io.BytesIO()
        Image.new("RGB", (64, 64)).save(buffer, "PNG")
        self.detector.first(buffer.getvalue(), self.detector.question(None))

    def check(self) -> None:
        """Raise unless the decoder's thread is alive."""
        if self.batcher and not self.batcher._thread.is_alive():
            raise RuntimeError("the decoder's thread has ended")

    def close(self) -> None:
        """Finish what is queued and stop."""
        self._pool.shutdown(cancel_futures=True)
        if self.batcher:
            self.batcher.close()
