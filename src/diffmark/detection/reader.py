"""The one path from images to answers, which every detector takes.

first    what can be said of a picture alone, on all cores: an answer, or that latents are to be asked (`Open`)
finish   answers to several pictures: the latents of those that are open are decoded together

The library, the command line, bulk runs and C2PA recovery call `scan` or `detect`; the service calls the two steps
with queues of its own in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from diffmark.detection.decision import Detection, Question
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.images import ImageError, ImageLike, Picture
from diffmark.parallel import cores, on_all_cores
from diffmark.payload.scheme import PayloadScheme
from diffmark.secret import SecretLike, as_secrets

if TYPE_CHECKING:
    from diffmark.detection.latent import Detector

Rows: TypeAlias = Iterable[np.ndarray]


@dataclass(frozen=True)
class Open:
    """A picture that a latent codec is to be asked about, and the pixel layer's answer if there is one."""

    picture: Picture
    found: Detection | None = None


class Reader(ABC):
    """A detector. `tries` counts the keys and readers that may be asked; p-values are corrected for them."""

    name: str
    fpr: float
    payload: PayloadScheme | None
    tries: int
    max_pixels: int
    chunk: int = max(16, 2 * cores())  # images that are in memory at a time

    @property
    @abstractmethod
    def length(self) -> int:
        """Bits of a secret."""

    @property
    @abstractmethod
    def latent(self) -> Detector | None:
        """The detector of a latent codec, if this reader has one."""

    @abstractmethod
    def first(self, image: ImageLike, question: Question) -> Detection | Open:
        """What can be said of one image alone; raises ImageError if it cannot be read."""

    @abstractmethod
    def evidence_map(self, image: ImageLike, found: Detection) -> EvidenceMap:
        """Where in an image the mark is: for the secret that matched, or for the bits that were read."""

    def question(self, secret: SecretLike | None) -> Question:
        """What is asked of every image; raises if the rate cannot be reached among so many secrets."""
        secrets = None if secret is None else as_secrets(secret, self.length)
        question = Question(self.fpr, secrets, self.payload, self.tries)
        question.check(self.length)
        return question

    def detect(self, image: ImageLike, secret: SecretLike | None = None) -> Detection:
        """One image. `secret` may be several: the p-value then counts the tries."""
        (found,) = self.detect_many([image], secret)
        return found

    def detect_many(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection]:
        """A stream of images; at most `chunk` are in memory at a time."""
        for outcome in self.scan(images, secret):
            if isinstance(outcome, ImageError):
                raise outcome
            yield outcome

    def scan(
        self, images: Iterable[ImageLike], secret: SecretLike | None = None
    ) -> Iterator[Detection | ImageError]:
        """Like `detect_many`, but an image that cannot be read is yielded as its error, in its place."""
        question, stream = self.question(secret), iter(images)
        while chunk := list(islice(stream, self.chunk)):
            outcomes = on_all_cores(partial(self._first, question=question), chunk)
            yield from self.finish(outcomes, question)

    def finish(
        self,
        outcomes: Sequence[Detection | ImageError | Open],
        question: Question,
        logits: Callable[[list[Picture]], Rows] | None = None,
    ) -> list[Detection | ImageError]:
        """Answers in the order of the outcomes of `first`.

        `logits` makes logits (K, L, 2), under K keys, of pictures at the codec's native size; by default the latent
        codec does, at once.
        """
        pictures = [outcome.picture for outcome in outcomes if isinstance(outcome, Open)]
        answers: Iterator[Detection] = iter(())
        if pictures:
            latent = self.latent
            assert latent is not None  # what else should be asked
            native = [picture.resized(latent.image_size) for picture in pictures]
            rows = (logits or latent.logits_of)(native)
            answers = (
                latent.answer(row, question, picture.source, picture.notes)
                for row, picture in zip(rows, native, strict=True)
            )
        return [
            better(outcome.found, next(answers)) if isinstance(outcome, Open) else outcome
            for outcome in outcomes
        ]

    def _first(self, image: ImageLike, question: Question) -> Detection | Open | ImageError:
        try:
            return self.first(image, question)
        except ImageError as error:
            return error


def better(first: Detection | None, second: Detection) -> Detection:
    """The answer with the smaller p-value; the first if there is nothing between them."""
    if first is None:
        return second
    p = [1.0 if found.p_value is None else found.p_value for found in (first, second)]
    chosen = second if p[1] < p[0] else first
    return replace(chosen, source=first.source)
