"""Several readers at once: the pixel layer first, and the latent codec at hand where the pixel layer sees no mark.

Which readers are asked depends on the picture alone, never on a secret. Every answer names the reader that gave it,
and its p-value is corrected for the number of readers that may be asked. Without a secret the answer is chosen by
blind evidence, so that a registry may compare its bits with all keys as if there were one reader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diffmark.detection.decision import Detection, Question
from diffmark.detection.evidence_map import EvidenceMap
from diffmark.detection.pixel import PixelDetector
from diffmark.detection.reader import Open, Reader
from diffmark.images import MAX_PIXELS, ImageLike
from diffmark.keys.ring import RingLike, as_ring
from diffmark.payload.scheme import PayloadScheme

if TYPE_CHECKING:
    from diffmark.detection.latent import Detector

AnyDetector: TypeAlias = "PixelDetector | JointDetector | Detector"
AUTO, PIXEL = "auto", "pixel"
LATENT = "vista"  # the latent codec that comes with the package


class JointDetector(Reader):
    """The pixel layer and one latent codec, which is loaded when it is first needed."""

    name = AUTO

    def __init__(self, pixel: PixelDetector, load: Callable[[], Detector]) -> None:
        if pixel.tries < 2:
            raise ValueError("two readers are two tries: give PixelDetector(tries=2)")
        self.pixel, self._load = pixel, load
        self.fpr, self.payload, self.tries = pixel.fpr, pixel.payload, pixel.tries
        self.max_pixels = pixel.max_pixels

    @cached_property
    def latent(self) -> Detector:
        return self._load()

    @property
    def length(self) -> int:
        return self.pixel.length

    def first(self, image: ImageLike, question: Question) -> Detection | Open:
        """The pixel layer's answer if it is clear."""
        found, picture, clear = self.pixel.look(image, question)
        return found if clear else Open(picture, found)

    def evidence_map(self, image: ImageLike, found: Detection) -> EvidenceMap:
        """By the reader that found it."""
        return (self.latent if found.reader != PIXEL else self.pixel).evidence_map(image, found)


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
