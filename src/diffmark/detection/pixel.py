"""`PixelDetector`: verdicts of the pixel layer, with the same calls as the detector of a latent codec."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from diffmark.detection.decision import Detection, Question, decide
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.detection.pixel_calibration import blind_test
from diffmark.detection.pixel_evidence import evidence_map
from diffmark.images import MAX_PIXELS, ImageError, ImageLike, Picture, read_image
from diffmark.keys.ring import PUBLIC_RING, KeyRing
from diffmark.payload.scheme import PayloadScheme
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.reader import CLEAR_NATS, Reading
from diffmark.pixel.spectrum import planes
from diffmark.secret import SecretLike, as_secrets, from_hex
from diffmark.statistics import to_logits


@dataclass(frozen=True, eq=False)
class KeyedReading:
    """What was read, and the codec whose key it was read under."""

    reading: Reading
    codec: PixelCodec


class PixelDetector:
    """Reads secrets from images under an operator key, or under each key of a ring.

    `tries` counts the keys of the ring, and other readers that may be asked. `search=False` reads pictures only as
    they come.
    """

    def __init__(
        self,
        codec: PixelCodec | KeyRing | None = None,
        *,
        search: bool = True,
        fpr: float = 1e-3,
        payload: PayloadScheme | None = None,
        max_pixels: int = MAX_PIXELS,
        tries: int | None = None,
    ) -> None:
        if isinstance(codec, PixelCodec):
            self.codecs: tuple[PixelCodec, ...] = (codec,)
        else:
            self.codecs = tuple(PixelCodec(key) for key in codec or PUBLIC_RING)
        self.codec = self.codecs[0]  # the one that writes
        tries = len(self.codecs) if tries is None else tries
        if tries < len(self.codecs):
            raise ValueError(f"{len(self.codecs)} keys are as many tries, got tries={tries}")
        Question(fpr, None, payload, tries).check(self.codec.length)
        self.search, self.fpr, self.payload = search, fpr, payload
        self.max_pixels, self.tries = max_pixels, tries

    @property
    def name(self) -> str:
        return self.codec.name

    @property
    def pixel(self) -> PixelDetector:
        """Itself: what reads pixels."""
        return self

    @property
    def latent(self) -> None:
        """This reader has no latent codec; readers of other kinds have."""
        return None

    @property
    def length(self) -> int:
        """Bits of a secret."""
        return self.codec.length

    def detect(self, image: ImageLike, secret: SecretLike | None = None) -> Detection:
        """One image. `secret` may be several: the p-value then counts the tries."""
        return self.detect_picture(read_image(image, self.max_pixels), self.question(secret))

    def detect_many(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection]:
        """A stream of images, on all cores."""
        for outcome in self.scan(images, secret):
            if isinstance(outcome, ImageError):
                raise outcome
            yield outcome

    def scan(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection | ImageError]:
        """Like `detect_many`, but an image that cannot be read is yielded as its error, in its place."""
        question = self.question(secret)

        def one(image: ImageLike) -> Detection | ImageError:
            try:
                return self.detect_picture(read_image(image, self.max_pixels), question)
            except ImageError as error:
                return error

        yield from in_order(one, images)

    def question(self, secret: SecretLike | None) -> Question:
        """What is asked of every image; raises if the rate cannot be reached among so many secrets."""
        secrets = None if secret is None else as_secrets(secret, self.length)
        question = Question(self.fpr, secrets, self.payload, self.tries)
        question.check(self.length)
        return question

    def detect_picture(self, picture: Picture, question: Question) -> Detection:
        """The verdict on a picture."""
        return self.decide_reading(self.read(picture), picture, question)

    def read(self, picture: Picture) -> KeyedReading:
        """The reading with the most evidence among those under each key; no secret is known here."""
        best = None
        for search in (False, True) if self.search and len(self.codecs) > 1 else (self.search,):
            for codec in self.codecs:
                found = codec.read(picture, search)
                if best is None or found.evidence > best.reading.evidence:
                    best = KeyedReading(found, codec)
                if is_clear(best):
                    return best
        assert best is not None
        return best

    def evidence_map(self, image: ImageLike, found: Detection) -> EvidenceMap:
        """Where in an image the mark is: for the secret that matched, or for the bits that were read."""
        picture = read_image(image, self.max_pixels)
        secret = None if found.matched_secret is None else from_hex(found.matched_secret, self.length)
        found_now = self.read(picture)
        return evidence_map(planes(picture.image), found_now.codec.layout, found_now.reading, secret)

    def decide_reading(self, keyed: KeyedReading, picture: Picture, question: Question) -> Detection:
        """The verdict on what was read from a picture."""
        reading = keyed.reading
        notes = picture.notes if reading.view is None else (*picture.notes, f"read as {reading.view}")
        margins = reading.margins
        return decide(
            to_logits(margins),
            question,
            blind_test(reading.evidence),
            picture.source,
            notes,
            self.name,
            keyed.codec.key.id,
        )


def is_clear(keyed: KeyedReading) -> bool:
    """Whether a reading needs no second opinion; decided without any secret."""
    return keyed.reading.evidence >= CLEAR_NATS


def in_order(call, items):  # type: ignore[no-untyped-def]
    """Results of `call` on a stream of items, in order, a few at a time on all cores."""
    workers = os.cpu_count() or 1
    if workers == 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(workers) as pool:
        waiting = []
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > 2 * workers:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
