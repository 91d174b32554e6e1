"""What the routes work with: detector behind a batcher, registry, tokens, limits, metrics."""

from __future__ import annotations

import io
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from diffmark.detection.decision import Detection
from diffmark.detection.joint import AnyDetector
from diffmark.images import ImageError, Picture, read_image
from diffmark.pixel.codec import MarkWarning
from diffmark.registry import Registry
from diffmark.registry.access import Access
from diffmark.registry.fingerprints import compared
from diffmark.secret import as_secrets
from diffmark.server.lane import Lane
from diffmark.server.limits import Limits, RateLimiter
from diffmark.server.models import Examination, GenerateRequest
from diffmark.server.oracle import Answers, addresses_of, coarse, pictures_of
from diffmark.server.reading import Reading
from diffmark.server.shared_limits import SharedLimiter
from diffmark.server.tokens import Token, Tokens
from diffmark.verdict import SigningKey


class Fingerprints(Protocol):
    """Where pictures that were marked can be looked up by likeness."""

    def known(self, data: bytes) -> bool:
        """Whether a picture like this file's was marked here."""

    def distance(self, data: bytes, key: str) -> int | None:
        """Bits by which it differs from the picture that a key was written into; None if that is not known."""

    def of(self, registry: Registry) -> Any:
        """The same for another actor: `log(image, key, reason)` keeps a marked image's."""


if TYPE_CHECKING:  # it needs torch and diffusers, which the service does not
    from diffmark.server.painting import Painter, Painting

MAPS = 32  # evidence maps that may wait


class Metrics:
    """Counters for Prometheus, one set a service; several workers add theirs up in a folder."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.requests = Counter("diffmark_requests", "Requests", ["route", "status"], registry=own)
        self.seconds = Histogram("diffmark_seconds", "Seconds a request", ["route"], registry=own)
        self.images = Counter("diffmark_images", "Images read", ["verdict"], registry=own)
        self.waiting = Gauge(
            "diffmark_waiting", "Images in the queue", registry=own, multiprocess_mode="livesum"
        )
        if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            self.registry = CollectorRegistry()  # what is shown: all workers together
            MultiProcessCollector(self.registry)

    def text(self) -> bytes:
        """As Prometheus asks for it."""
        return generate_latest(self.registry)


@dataclass
class Service:
    """One running service."""

    detector: AnyDetector
    registry: Registry
    limits: Limits = field(default_factory=Limits)
    capacity: int = 256  # images that may wait
    threads: int = 0  # that read pixels; as many as cores
    painter: Painter | None = None  # for /v1/generate
    signing: SigningKey | None = None  # of verdicts
    fingerprints: Fingerprints | None = None  # for pictures whose mark is not read

    def __post_init__(self) -> None:
        self.reading = Reading(self.detector, self.capacity, self.threads)
        self.tokens = Tokens(self.registry.store.engine)
        self.limiter: RateLimiter | SharedLimiter = RateLimiter(self.limits)
        self.pictures: RateLimiter | SharedLimiter = RateLimiter(pictures_of(self.limits))
        self.addresses: RateLimiter | SharedLimiter = RateLimiter(addresses_of(self.limits))
        self.answers = Answers()
        self.metrics = Metrics()
        self.mapping = Lane("maps", MAPS)
        self.painting = Lane("generation", self.limits.painting)

    @property
    def native_size(self) -> list[int] | None:
        """Height and width that images are made for; None if any will do."""
        return list(self.detector.latent.image_size) if self.detector.pixel is None else None

    def detect(self, uploads: Sequence[tuple[str, bytes]], secret: str | None = None) -> list[Detection]:
        """Detections in the order of the uploads, read together with those of other requests."""
        try:
            secrets = None if secret is None else as_secrets(secret, self.detector.length)
        except ValueError as error:
            raise ImageError(str(error)) from error
        question = b"" if secrets is None else secrets.tobytes()
        names = [Answers.name(data, question) for _, data in uploads]
        found = {name: known for name in names if (known := self.answers.get(name)) is not None}
        new = {name: upload for name, upload in zip(names, uploads, strict=True) if name not in found}
        pictures = [self._read(upload) for upload in new.values()]
        read = self.reading.read(pictures, secrets, self.limits.seconds) if new else []
        for name, one in zip(new, read, strict=True):
            self.answers.put(name, one)
            found[name] = one
        for name in names:
            self.metrics.images.labels(found[name].verdict).inc()
        return [replace(found[name], source=source) for name, (source, _) in zip(names, uploads, strict=True)]

    def spend(self, token: Token, pictures: int) -> float:
        """Take pictures out of a token's budget: 0, or the seconds until there is room again."""
        return max(self.pictures.wait(f"pictures {token.id}") for _ in range(pictures))

    def _read(self, upload: tuple[str, bytes]) -> Picture:
        name, data = upload
        try:
            return replace(read_image(data, self.limits.pixels), source=name)
        except ImageError as error:
            raise ImageError(str(error).replace("bytes:", f"{name}:", 1)) from error

    def examine(self, upload: tuple[str, bytes], token: Token, reason: str, top: int) -> Examination:
        """Detection, identification if the token's role may, and the evidence map if there is a mark."""
        picture = self._read(upload)
        (found,) = self.detect([upload])
        answer = None
        if token.role == "auditor":
            answer = self.registry_of(token.name).identify(found, top, reason=reason)
            if answer.verdict:  # one verdict: who is named says that there is a mark
                key = answer.candidates[0].key
                found = replace(found, verdict="marked", matched_secret=key)
                found = replace(found, notes=(*found.notes, *self._compared(upload[1], key)))
        evidence = None
        if found.marked and token.role == "auditor":
            draw = self.detector.evidence_map
            evidence = self.mapping.run(lambda: draw(picture, found), self.limits.seconds)
        seen = Examination.of(found, picture.image.size, answer, evidence)
        if token.role == "auditor":
            return seen
        return seen.model_copy(update={"found": coarse(seen.found), "margins": None})

    def embed(
        self, upload: tuple[str, bytes], secret: str, quality: float | None, strength: float = 1.0
    ) -> bytes:
        """The marked image as PNG: in the pixel layer, or by the service's latent codec if it has no other."""
        try:
            secrets = as_secrets(secret, self.detector.length)
        except ValueError as error:
            raise ImageError(str(error)) from error
        picture = self._read(upload)
        if self.detector.pixel is None:
            from diffmark.mark.image import embed

            marked = embed(picture, self.detector.codec, self.detector.vae, secrets, strength)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MarkWarning)
                marked = self.reading.pixel.codec.embed(picture, secrets, quality).image
        buffer = io.BytesIO()
        marked.save(buffer, "PNG")
        return buffer.getvalue()

    def generate(self, painter: Painter, request: GenerateRequest, actor: str) -> Painting:
        """A marked image under a fresh key; a key whose image was not made is revoked."""
        deadline = time.monotonic() + self.limits.painting_seconds
        registry = self.registry_of(actor)

        def work() -> Painting:
            context = {"model": painter.model}
            key = registry.issue(request.principal, context=context, reason=request.reason)
            try:
                made = painter.paint(request, key.hex, key.secret, deadline)
                self.keep_fingerprint(registry, made.png, key.hex, "generate")
                return made
            except BaseException:
                registry.revoke(key=key.hex, reason="its image was not made")
                raise

        return self.painting.run(work, self.limits.painting_seconds)

    def _compared(self, data: bytes, key: str) -> list[str]:
        """A note on whether a picture looks like the one that its key was written into, if that is known."""
        distance = None if self.fingerprints is None else self.fingerprints.distance(data, key)
        return [] if distance is None else [compared(distance)]

    def keep_fingerprint(self, registry: Registry, png: bytes, key: str, reason: str) -> None:
        """That of a marked image, if fingerprints are kept here."""
        if self.fingerprints is not None:
            self.fingerprints.of(registry).log(png, key, reason)

    def registry_of(self, actor: str) -> Registry:
        """The registry as one actor sees it; connections and keys in memory are shared."""
        return Registry(self.registry.store, self.registry.searcher, Access(self.registry.store, actor))

    def check(self) -> None:
        """Raise unless the database and the decoder's thread answer."""
        len(self.registry)
        self.reading.check()

    def close(self) -> None:
        self.reading.close()
        self.mapping.close()
        self.painting.close()
        self.registry.close()
