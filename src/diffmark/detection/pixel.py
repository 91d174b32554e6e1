"""`PixelDetector`: verdicts of the pixel layer, with the same calls as the detector of a latent codec."""

from __future__ import annotations

from dataclasses import dataclass

from diffmark.detection.decision import Detection, Question, decide
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.detection.pixel_calibration import blind_test
from diffmark.detection.pixel_evidence import evidence_map
from diffmark.detection.reader import Reader
from diffmark.images import MAX_PIXELS, ImageLike, Picture, read_image
from diffmark.keys.ring import PUBLIC_RING, KeyRing
from diffmark.payload.scheme import PayloadScheme
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.reader import CLEAR_NATS, Reading
from diffmark.pixel.spectrum import planes
from diffmark.secret import from_hex
from diffmark.statistics import to_logits


@dataclass(frozen=True, eq=False)
class KeyedReading:
    """What was read, and the codec whose key it was read under."""

    reading: Reading
    codec: PixelCodec


class PixelDetector(Reader):
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
        self.name, self.search, self.fpr, self.payload = self.codec.name, search, fpr, payload
        self.max_pixels, self.tries = max_pixels, tries

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
        return self.codec.length

    def first(self, image: ImageLike, question: Question) -> Detection:
        """The pixel layer has the whole answer."""
        return self.look(image, question)[0]

    def look(self, image: ImageLike, question: Question) -> tuple[Detection, Picture, bool]:
        """The answer, the picture, and whether the reading is clear, in which no secret plays a part."""
        picture = read_image(image, self.max_pixels)
        keyed = self.read(picture)
        return self._decide(keyed, picture, question), picture, is_clear(keyed)

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
        picture = read_image(image, self.max_pixels)
        secret = None if found.matched_secret is None else from_hex(found.matched_secret, self.length)
        found_now = self.read(picture)
        return evidence_map(planes(picture.image), found_now.codec.layout, found_now.reading, secret)

    def _decide(self, keyed: KeyedReading, picture: Picture, question: Question) -> Detection:
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
