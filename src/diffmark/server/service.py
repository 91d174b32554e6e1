"""What the routes work with: detector behind a batcher, registry, tokens, limits, metrics."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from diffmark.detection import Detection, Detector
from diffmark.embedding import embed
from diffmark.images import ImageError, read_image
from diffmark.registry import Registry
from diffmark.registry.access import Access
from diffmark.secret import as_secrets
from diffmark.server.batching import Batcher
from diffmark.server.limits import Limits, RateLimiter
from diffmark.server.tokens import Tokens


class Metrics:
    """Counters for Prometheus, one set a service."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("diffmark_requests", "Requests", ["route", "status"], registry=own)
        self.seconds = Histogram("diffmark_seconds", "Seconds a request", ["route"], registry=own)
        self.images = Counter("diffmark_images", "Images read", ["verdict"], registry=own)
        self.waiting = Gauge("diffmark_waiting", "Images in the queue", registry=own)


@dataclass
class Service:
    """One running service."""

    detector: Detector
    registry: Registry
    limits: Limits = field(default_factory=Limits)
    capacity: int = 256  # images that may wait

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.detector, self.capacity)
        self.tokens = Tokens(self.registry.store.engine)
        self.limiter = RateLimiter(self.limits)
        self.metrics = Metrics()

    def detect(self, uploads: Sequence[tuple[str, bytes]], secret: str | None = None) -> list[Detection]:
        """Detections in the order of the uploads, decoded together with those of other requests."""
        length = self.detector.codec.config.length
        try:
            secrets = None if secret is None else as_secrets(secret, length)
        except ValueError as error:
            raise ImageError(str(error)) from error
        pictures = []
        for name, data in uploads:
            try:
                pictures.append(
                    read_image(data, self.limits.pixels).resized(self.detector.codec.config.image_size)
                )
            except ImageError as error:
                raise ImageError(str(error).replace("bytes:", f"{name}:", 1)) from error
        futures = [self.batcher.submit(picture) for picture in pictures]
        found = []
        for (name, _), picture, future in zip(uploads, pictures, futures, strict=True):
            logits = future.result(self.limits.seconds)
            found.append(self.detector.decide(logits, secrets, name, picture.notes))
            self.metrics.images.labels(found[-1].verdict).inc()
        return found

    def embed(self, upload: tuple[str, bytes], secret: str, strength: float) -> bytes:
        """The marked image as PNG."""
        try:
            secrets = as_secrets(secret, self.detector.codec.config.length)
        except ValueError as error:
            raise ImageError(str(error)) from error
        picture = read_image(upload[1], self.limits.pixels)
        marked = embed(picture, self.detector.codec, self.detector.vae, secrets, strength)
        buffer = io.BytesIO()
        marked.save(buffer, "PNG")
        return buffer.getvalue()

    def registry_of(self, actor: str) -> Registry:
        """The registry as one actor sees it; connections and keys in memory are shared."""
        return Registry(self.registry.store, self.registry.searcher, Access(self.registry.store, actor))

    def check(self) -> None:
        """Raise unless the database and the decoder's thread answer."""
        len(self.registry)
        if not self.batcher._thread.is_alive():
            raise RuntimeError("the decoder's thread has ended")

    def close(self) -> None:
        self.batcher.close()
        self.registry.close()
