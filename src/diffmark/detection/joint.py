"""Several readers at once: the pixel layer first, and the latent codec at hand where the pixel layer sees no mark.

Which readers are asked depends on the picture alone, never on a secret. Every answer names the reader that gave it,
and its p-value is corrected for the number of readers that may be asked. Without a secret the answer is chosen by
blind evidence, so that a registry may compare its bits with all keys as if there were one reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diffmark.detection.decision import Detection, Question
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.detection.pixel import PixelDetector, in_order, is_clear
from diffmark.images import MAX_PIXELS, ImageError, ImageLike, Picture, read_image
from diffmark.keys.ring import RingLike, as_ring
from diffmark.payload.scheme import PayloadScheme
from diffmark.secret import SecretLike

if TYPE_CHECKING:
    from diffmark.detection.latent import Detector

AnyDetector: TypeAlias = "PixelDetector | JointDetector | Detector"
AUTO, PIXEL = "auto", "pixel"
LATENT = "vista"  # the latent codec that comes with the package
CHUNK = 16  # images that are in memory at a time


class JointDetector:
    """The pixel layer and one latent codec, which is loaded when it is first needed."""

    def __init__(self, pixel: PixelDetector, load: Callable[[], Detector]) -> None:
        if pixel.tries < 2:
            raise ValueError("two readers are two tries: give PixelDetector(tries=2)")
        self.pixel, self._load = pixel, load

    @cached_property
    def latent(self) -> Detector:
        return self._load()

    @property
    def name(self) -> str:
        return AUTO

    @property
    def length(self) -> int:
        return self.pixel.length

    @property
    def fpr(self) -> float:
        return self.pixel.fpr

    @property
    def payload(self) -> PayloadScheme | None:
        return self.pixel.payload

    @payload.setter
    def payload(self, scheme: PayloadScheme | None) -> None:
        self.pixel.payload = scheme

    def detect(self, image: ImageLike, secret: SecretLike | None = None) -> Detection:
        """One image. `secret` may be several: the p-value then counts the tries."""
        (found,) = self.detect_many([image], secret)
        return found

    def detect_many(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection]:
        """A stream of images."""
        for outcome in self.scan(images, secret):
            if isinstance(outcome, ImageError):
                raise outcome
            yield outcome

    def scan(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection | ImageError]:
        """Like `detect_many`, but an image that cannot be read is yielded as its error, in its place."""
        question = self.pixel.question(secret)
        chunk: list[ImageLike] = []
        for image in images:
            chunk.append(image)
            if len(chunk) == CHUNK:
                yield from self._chunk(chunk, question)
                chunk = []
        yield from self._chunk(chunk, question)

    def evidence_map(self, image: ImageLike, found: Detection) -> EvidenceMap:
        """Where in an image the mark is, by the reader that found it."""
        return (self.latent if found.reader != PIXEL else self.pixel).evidence_map(image, found)

    def _chunk(self, images: list[ImageLike], question: Question) -> Iterator[Detection | ImageError]:
        outcomes = list(in_order(lambda image: self._first(image, question), images))
        unclear = [found for found in outcomes if isinstance(found, tuple)]
        second: Iterator[Any] = iter(())
        if unclear:
            self.latent.payload = self.pixel.payload
            second = self.latent.scan([picture for _, picture in unclear], question.secrets)
        for outcome in outcomes:
            yield better(outcome[0], next(second)) if isinstance(outcome, tuple) else outcome

    def _first(
        self, image: ImageLike, question: Question
    ) -> Detection | ImageError | tuple[Detection, Picture]:
        """The pixel layer's answer, with the picture if another reader is to be asked."""
        try:
            picture = read_image(image, self.pixel.max_pixels)
        except ImageError as error:
            return error
        reading = self.pixel.read(picture)
        found = self.pixel.decide_reading(reading, picture, question)
        return found if is_clear(reading) else (found, picture)


def better(first: Detection, second: Detection | ImageError) -> Detection:
    """The answer with the smaller p-value; the first if there is nothing between them."""
    if isinstance(second, ImageError):
        return first
    p = [1.0 if found.p_value is None else found.p_value for found in (first, second)]
    chosen = second if p[1] < p[0] else first
    return replace(chosen, source=first.source)


def open_detector(
    codec: str | Path = AUTO,
    vae: str | Path | None = None,
    key: RingLike = None,
    *,
    search: bool = True,
    fpr: float = 1e-3,
    payload: PayloadScheme | None = None,
    max_pixels: int = MAX_PIXELS,
    device: str | None = None,
    **latent: Any,
) -> AnyDetector:
    """A detector by name: `auto` (pixel layer, then the latent codec at hand), `pixel`, or a latent codec.

    `key` is an operator key or a ring of them (see `as_ring`); by default the operator's ring, or else the public
    key. Every key is a try. `vae` and further options are those of `Detector`.
    """
    ring = as_ring(key)
    both = codec == AUTO and (vae is not None or find_spec("torch") is not None)
    shared: dict[str, Any] = {"fpr": fpr, "payload": payload, "max_pixels": max_pixels}
    shared["tries"] = len(ring) * (2 if both else 1)

    def load(name: str | Path) -> Detector:
        from diffmark.detection.latent import Detector
        from diffmark.latent.device import find_device

        return Detector.from_pretrained(name, vae, ring=ring, **shared, **latent).to(find_device(device))

    if codec not in (AUTO, PIXEL):
        return load(codec)
    if codec == PIXEL and vae is not None:
        raise ValueError("the pixel layer reads without an autoencoder: leave out --vae")
    pixel = PixelDetector(ring, search=search, **shared)
    return JointDetector(pixel, lambda: load(LATENT)) if both else pixel
