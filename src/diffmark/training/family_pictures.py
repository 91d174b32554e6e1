"""Pictures that a family's codec is measured on: marked, and read. Each is made once and kept.

embedded    a photograph marked with our own small autoencoder
generated   D(z + delta) of the teacher's autoencoder, as a pipeline of the family makes it; D(z) at strength 0

Every secret is a payload with error correction, so bits and payloads are read from the same images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from diffmark import statistics, vae
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.memory import Memory, Recipe, picture_digest
from diffmark.images import read_image
from diffmark.latent_marks import delta_at_z0
from diffmark.payload import PayloadScheme
from diffmark.provenance import code_digest, weights_digest
from diffmark.training.measurement import rate, rounded
from diffmark.vista.training.data import to_tensor, to_uint8

KEY = bytes(range(32))  # of the payloads that are measured
# Modules whose code pictures and readings depend on.
LATENTS = ("vae", "vista/autoencoder", "vista/training/data", "training/tiny", "training/family_pictures")
MARKING = (*LATENTS, "codec", "embedding", "fitting", "images", "latent_marks", "secret")
READING = (*LATENTS, "codec", "detection", "fast", "images")


class Accounts:
    """The account of each picture, and its payload as a secret (N, L)."""

    def __init__(self, count: int, length: int, rng: np.random.Generator) -> None:
        self.scheme = PayloadScheme(KEY, length)
        self.numbers = rng.integers(1 << self.scheme.account_bits, size=count)
        self.secrets = np.stack([self.scheme.encode(int(number), nonce=0) for number in self.numbers])

    def named(self, margins: np.ndarray) -> int:
        """How many margins (B, L) verify as the payload of any account."""
        return sum(self.scheme.decode(row).verified for row in margins)

    def verified(self, margins: np.ndarray) -> int:
        """How many of the first accounts are named by payloads of these margins (B, L), in their order."""
        read = [self.scheme.decode(row).account for row in margins]  # None unless verified
        return sum(found == number for found, number in zip(read, self.numbers, strict=False))


class Marker:
    """Marks photographs with their secrets."""

    def __init__(
        self, codec: Codec, own: nn.Module, teacher: nn.Module | None, accounts: Accounts, memory: Memory
    ) -> None:
        self.codec, self.own, self.teacher = codec, own, teacher
        self.accounts, self.memory = accounts, memory
        self._code = code_digest(*MARKING)
        self._codec = {
            "codec": weights_digest(codec, half=True),
            "deviation": codec.config.deviation,
            "fitted": codec.config.fitted,
        }

    def embedded(self, images: Sequence[Image.Image], strength: float) -> list[Image.Image]:
        """The difference that our autoencoder makes of delta, added to each image."""

        def mark(number: int, image: Image.Image) -> Image.Image:
            return embed(image, self.codec, self.own, self.accounts.secrets[number], strength)

        return self._marked({"embedded": weights_digest(self.own)}, images, strength, mark)

    def generated(self, images: Sequence[Image.Image], strength: float) -> list[Image.Image]:
        """The pictures of latents that carry the secret, as at the end of a pipeline with the teacher."""
        teacher, own = self.teacher, self.own
        assert teacher is not None
        recipe: Recipe = {"generated": weights_digest(teacher)}
        if strength:
            recipe |= {"read_by": weights_digest(own)}

        def mark(number: int, image: Image.Image) -> Image.Image:
            recipe = {
                "latents": weights_digest(teacher),
                "picture": picture_digest(image),
                "code": code_digest(*LATENTS),
            }
            kept = self.memory.remember(recipe, lambda: {"z": vae.encode(teacher, as_pixels(image)).numpy()})
            z = torch.from_numpy(kept["z"])
            if strength:
                secret = self.accounts.secrets[number]
                z = z + strength * delta_at_z0(self.codec, teacher, z, secret, strength, own)
            return as_image(vae.decode(teacher, z))

        return self._marked(recipe, images, strength, mark)

    def _marked(
        self,
        shared: Recipe,
        images: Sequence[Image.Image],
        strength: float,
        mark: Callable[[int, Image.Image], Image.Image],
    ) -> list[Image.Image]:
        made = []
        for number, image in enumerate(images):
            recipe = shared | {"strength": strength, "picture": picture_digest(image), "code": self._code}
            if strength:
                recipe |= self._codec | {"secret": self.accounts.secrets[number].tolist()}
            made.append(self.memory.remember_image(recipe, lambda n=number, i=image: mark(n, i)))  # type: ignore[misc]
        return made


class Reader:
    """Reads the secrets of marked pictures with one autoencoder, or with a pixel decoder."""

    def __init__(self, detector: Detector, accounts: Accounts, memory: Memory) -> None:
        self.detector, self.accounts, self.memory = detector, accounts, memory
        self.recipe = {
            "margins": weights_digest(detector.codec, half=True),
            "by": weights_digest(detector.vae or detector.pixel_decoder),
            "code": code_digest(*READING),
        }

    def figures(self, images: Sequence[Image.Image]) -> dict[str, Any]:
        """Bits, verdicts and payloads of images that carry the first of the secrets, in their order."""
        margins = self.margins(images)
        secrets = self.accounts.secrets[: len(images)]
        matches = ((margins > 0) == secrets).sum(axis=1)
        length = secrets.shape[1]
        found: dict[str, Any] = {
            "bit_accuracy": rounded(matches.mean() / length),
            "worst_image": rounded(matches.min() / length),
            "payload_verified": rate(self.accounts.verified(margins), len(images)),
        }
        for fpr in (1e-3, 1e-6):
            passed = int((matches >= statistics.match_threshold(length, fpr)).sum())
            found[f"tpr_at_{fpr:g}"] = rate(passed, len(images))
        return found

    def margins(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(B, L), read one after the other as files would be."""
        return np.stack([self._kept_margins(image) for image in images])

    def _kept_margins(self, image: Image.Image) -> np.ndarray:
        recipe = self.recipe | {"picture": picture_digest(image)}
        return self.memory.remember(recipe, lambda: {"margins": self._margins(image)})["margins"]

    def _margins(self, image: Image.Image) -> np.ndarray:
        picture = read_image(image).resized(self.detector.image_size)
        logits = self.detector.logits(torch.from_numpy(picture.pixels()[None]))
        return logits[0, :, 1] - logits[0, :, 0]


def as_pixels(image: Image.Image) -> Tensor:
    """(1, 3, H, W) in [-1, 1]."""
    return to_tensor(np.asarray(image)[None])


def as_image(pixels: Tensor) -> Image.Image:
    """The first of pixels in [-1, 1], in 8 bits."""
    return Image.fromarray(to_uint8(pixels)[0])
