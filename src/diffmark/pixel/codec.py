"""`PixelCodec`: writes secrets into images and reads them, with nothing but a key."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops

from diffmark.images import ImageError, ImageLike, Picture, read_image
from diffmark.pixel.keys import OperatorKey, as_key
from diffmark.pixel.layout import PixelConfig, layout_of
from diffmark.pixel.reader import FOUND_NATS, Reading, read, read_luma
from diffmark.pixel.spectrum import planes
from diffmark.pixel.writer import ROUNDS, Writer, add, colours
from diffmark.secret import Bits, SecretLike, as_secrets, to_hex

NAME = "pixel"
MIN_SIDE = 64  # pixels
MAX_PIXELS = 100_000_000
SEEN_QUALITY = 70.0  # SSIMULACRA2 below which a mark may be seen by anybody


class MarkWarning(UserWarning):
    """A mark that was written, but not as it should be."""


@dataclass(frozen=True, eq=False)
class Marked:
    """A marked image, and what was reached."""

    image: Image.Image
    secret: str  # hex
    quality: float  # estimate of SSIMULACRA2, 100 for a picture that was not changed
    psnr: float
    bits_read: int  # bits that are read back from the image as it is
    length: int
    key_id: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "secret": self.secret,
            "reader": NAME,
            "key_id": self.key_id,
            "ssimulacra2": round(self.quality, 1),
            "psnr": None if math.isinf(self.psnr) else round(self.psnr, 2),
            "bits_read": self.bits_read,
            "bits": self.length,
            "notes": list(self.notes),
        }


class PixelCodec:
    """Writer and reader of the pixel layer under one operator key; the public key by default.

    `key` is an `OperatorKey`, 32 bytes, 64 hex digits, or the path of a key file.
    """

    name = NAME

    def __init__(
        self, key: OperatorKey | bytes | str | Path | None = None, config: PixelConfig | None = None
    ) -> None:
        self.config = config or PixelConfig()
        self.key = as_key(key)
        self.layout = layout_of(self.config, self.key)

    @property
    def length(self) -> int:
        """Bits of a secret."""
        return self.config.length

    @cached_property
    def description(self) -> dict[str, Any]:
        """Config and key id: what travels in results. Never the key."""
        return {"reader": NAME, "key_id": self.key.id, "config": self.config.to_dict()}

    def embed(self, image: ImageLike, secret: SecretLike, quality: float | None = None) -> Marked:
        """A copy of the image, upright RGB, that carries the secret (hex, int, bytes or bits).

        `quality` is the SSIMULACRA2 of the marked picture: 90 cannot be told from the original, 70 is high
        quality, and 100 leaves the picture as it is. By default it is 80 to 90: no lower than the mark needs.
        """
        secrets = as_secrets(secret, self.length)
        if len(secrets) != 1:
            raise ValueError(f"an image carries one secret, got {len(secrets)}")
        picture = self._markable(image)
        notes = list(picture.notes)
        if quality is not None and quality < SEEN_QUALITY:
            notes.append(f"a quality of {quality:g} allows a mark that can be seen")
        if quality == 100:
            notes.append("a quality of 100 leaves no room for a mark: the picture is not marked")
            return self._marked(picture.image, picture.image, secrets[0], 100.0, notes)
        before = self.read(picture, search=False)
        if before.evidence >= FOUND_NATS:
            notes.append("the picture carried a mark of this key already; two marks weaken each other")
        fit = Writer(self.layout, quality).fit(picture.image, secrets[0])
        return self._marked(picture.image, add(picture.image, fit.residual), secrets[0], fit.quality, notes)

    def residual(
        self, image: ImageLike, secret: SecretLike, quality: float | None = None, rounds: int = ROUNDS
    ) -> NDArray[np.float32]:
        """What `embed` adds before it rounds to 8 bits, (H, W, 3) in levels of 0 ... 255.

        `rounds` of fitting to copies: each costs about a third of the time; 0 estimates all from the picture.
        """
        picture = self._markable(image)
        fit = Writer(self.layout, quality, rounds).fit(picture.image, as_secrets(secret, self.length)[0])
        return colours(fit.residual, (picture.image.height, picture.image.width))

    def read(self, image: ImageLike, search: bool = True) -> Reading:
        """Scores of every bit; with `search`, also in pictures that were turned, cropped, mirrored or framed."""
        return read(planes(read_image(image, MAX_PIXELS).image), self.layout, search)

    def read_luma(self, image: ImageLike) -> Reading:
        """Scores of the luma bands, without resampling or search: whether a mark that was just written is there."""
        return read_luma(planes(read_image(image, MAX_PIXELS).image)[0], self.layout)

    def _markable(self, image: ImageLike) -> Picture:
        picture = read_image(image, MAX_PIXELS)
        if min(picture.image.size) < MIN_SIDE:
            width, height = picture.image.size
            raise ImageError(
                f"{picture.source}: {width}x{height} is too small for a mark: {MIN_SIDE} px a side"
            )
        return picture

    def _marked(
        self, cover: Image.Image, image: Image.Image, secret: Bits, quality: float, notes: list[str]
    ) -> Marked:
        reading = self.read(image, search=False)
        right = int(np.sum((reading.margins > 0) == (secret > 0)))
        change = np.asarray(ImageChops.difference(cover, image).histogram()).reshape(-1, 256).sum(axis=0)
        error = float(change @ np.arange(256.0) ** 2 / change.sum())
        psnr = math.inf if error == 0 else 10 * math.log10(255**2 / error)
        if quality < 100 and right < self.length:
            notes.append(
                f"this picture cannot carry the whole mark: {right} of {self.length} bits are read back"
            )
        for note in notes:
            warnings.warn(note, MarkWarning, stacklevel=3)
        return Marked(image, to_hex(secret), quality, psnr, right, self.length, self.key.id, tuple(notes))
