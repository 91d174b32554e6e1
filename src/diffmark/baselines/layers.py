"""DiffMark's other two forms: the pixel layer alone, and both layers with the same secret.

Both layers are read as one: the latent codec's scores are one more band beside the pixel layer's, gains are
estimated for all bands in the same way, and the log-likelihood ratios add up. Scores of a codec of initial noise
are standard normals where there is no mark, as the pixel layer's are; margins of a learned decoder are divided by
their spread on unmarked pictures.
Where the pixel layer finds a view, the latent decoder sees the picture in it. No secret is known to either.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import diffmark.pixel
from diffmark.attacks import ATTACKS
from diffmark.baselines.base import Method
from diffmark.baselines.diffmark import DiffMark
from diffmark.images import read_image
from diffmark.latent.codec import NoiseCodec
from diffmark.latent.noise import scores_of
from diffmark.mark.generation import ImageSpec
from diffmark.pixel.codec import MarkWarning, PixelCodec
from diffmark.pixel.layout import margins as joint_margins
from diffmark.pixel.search import undo
from diffmark.secret import Bits

CALIBRATED_ON = 64  # unmarked pictures, of which half are attacked
CALIBRATION_SCENES = 5_000_000  # the first of them: no experiment shows these
SPREAD_QUANTILE = (
    0.95  # of the pictures' spreads: one that the decoder misreads must not outvote the pixel layer
)


class PixelLayer(Method):
    """The pixel layer on finished pictures, at its own strength or at a SSIMULACRA2 of `quality`."""

    compared = False

    def __init__(self, codec: PixelCodec | None = None, quality: float | None = None) -> None:
        self.codec, self.quality = codec or PixelCodec(), quality
        self.bits = self.codec.length
        self.name = "diffmark-pixel" if quality is None else f"diffmark-pixel@{quality:g}"

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MarkWarning)  # what could not be written shows in the figures
            return self.codec.embed(image, secret, self.quality).image

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        return np.stack([self.codec.read(image).margins for image in images])

    def fingerprint(self) -> dict[str, Any]:
        return self.reader() | {"quality": self.quality}

    def reader(self) -> dict[str, Any]:
        return {"method": "diffmark-pixel", "key": self.codec.key.id, "code": self._code}

    @cached_property
    def _code(self) -> str:
        """A hash of the layer's modules: it has no weights, its code is what pictures depend on."""
        folder = Path(diffmark.pixel.__file__).parent
        return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


class BothLayers(Method):
    """The generation layer, and the pixel layer on its picture."""

    name, compared = "diffmark-both", False

    def __init__(self, generation: DiffMark, pixel: PixelLayer | None = None) -> None:
        self.generation, self.pixel = generation, pixel or PixelLayer()
        self.bits = generation.bits
        if self.bits != self.pixel.bits:
            raise ValueError(
                f"the layers' secrets have {self.bits} and {self.pixel.bits} bits: they must agree"
            )

    @property
    def upon(self) -> Method:
        return self.generation

    @property
    def repaints(self) -> bool:
        return self.generation.repaints

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        """A picture that the generation layer marked, with the pixel layer written too."""
        return self.pixel.embed(image, secret)

    def generate_all(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        generated = self.generation.generate_all(specs)
        return [self.embed(image, spec.secret) for image, spec in zip(generated, specs, strict=True)]

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        readings = [self.pixel.codec.read(image) for image in images]
        seen = [
            image if r.view is None else _undone(image, r.view)
            for image, r in zip(images, readings, strict=True)
        ]
        latent = self._scores(self.generation.decode(seen))
        return np.stack(
            [
                joint_margins(np.concatenate([r.scores, one[None]]))
                for r, one in zip(readings, latent, strict=True)
            ]
        )

    def _scores(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """The generation layer's margins (B, L) in standard deviations of unmarked pictures."""
        if isinstance(self.generation.codec, NoiseCodec):
            return np.stack([scores_of(row) for row in margins])
        return margins / self.spread

    @cached_property
    def spread(self) -> float:
        """Of the latent decoder's margins on unmarked pictures, some of them attacked."""
        from diffmark.vista.paint import painted_scenes

        rng, table = np.random.default_rng(CALIBRATION_SCENES), list(ATTACKS.values())
        pictures = list(painted_scenes(CALIBRATED_ON, CALIBRATION_SCENES))
        for index in range(0, CALIBRATED_ON, 2):
            attack = table[int(rng.integers(len(table)))]
            pictures[index] = attack(pictures[index], float(rng.uniform()), index)
        spreads = np.sqrt(np.mean(self.generation.decode(pictures) ** 2, axis=1))
        return float(np.quantile(spreads, SPREAD_QUANTILE))

    def parts(self) -> dict[str, tuple[Any, str]]:
        return self.generation.parts() | {"pixel layer": (self.pixel.codec, "read")}

    def fingerprint(self) -> dict[str, Any]:
        return {"method": self.name, "layers": [self.generation.fingerprint(), self.pixel.fingerprint()]}

    def reader(self) -> dict[str, Any]:
        return {"method": self.name, "readers": [self.generation.reader(), self.pixel.reader()]}


def _undone(image: Image.Image, view: Any) -> Image.Image:
    """The received picture as the marked one's frame, grey where it is absent."""
    received = np.moveaxis(np.asarray(read_image(image).image, np.float32), -1, 0)
    frame, present = undo(np.ascontiguousarray(received), view)
    levels = np.where(present > 0, frame, 127.5).clip(0, 255).round().astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(np.moveaxis(levels, 0, -1)))
