"""What an experiment works with: pictures, attacks and readings, each made once and kept.

Everything that takes time goes through one of the methods under "work", which `costs` counts beforehand.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffmark.attacks import ATTACKS, Attack
from diffmark.baselines.base import Method
from diffmark.evaluation.backbones import Backbone, find_backbone, scene_classifier
from diffmark.evaluation.batches import batches
from diffmark.evaluation.cache import Arrays, Cache, Recipe, picture_digest
from diffmark.evaluation.image_model import ImageModel, unseen_specs
from diffmark.evaluation.rows import WAVES, Row
from diffmark.evaluation.sources import crop, find_photographs, scene
from diffmark.evaluation.timing import WorkTimer
from diffmark.latent.pictures import to_pixels
from diffmark.latent.vae import encode
from diffmark.mark.generation import ImageSpec

Experiment = Callable[["Harness"], Iterator[Row]]


PART, COSTLY_PART = 8, 2  # images whose readings are kept together; the second where one takes seconds


@dataclass(frozen=True)
class Extent:
    """How many images; `quick` takes minutes, the full one many hours on two cores."""

    marked: int = 500  # marked images for clean figures of DiffMark
    repainted: int = 500  # the same where each picture takes all steps of the model
    compared: int = 100  # and for the methods that it is compared with
    pool: int = 1000  # pictures of the model, with z0: negatives, averaging
    siblings: int = 50  # pictures of each other model of the family
    scenes: int = 4000  # pictures of the painter
    photographs: int = 4000  # crops
    compared_negatives: int = 1000  # all of them for the methods that DiffMark is compared with
    attacked: int = 100  # marked images an attack and strength
    compared_attacked: int = 100  # the same for the others
    costly_attacked: int = 20  # and where it takes seconds to read one
    adversarial: int = 30  # the same for attacks by gradients
    strengths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    more_strengths: tuple[float, ...] = (0.5, 1.0)  # of combined, everyday and adversarial attacks
    victims: int = 50  # images that are forged, or freed of their mark
    keys: tuple[int, ...] = (10, 100, 1000, 10**4, 10**5, 10**6, 10**7, 10**8)
    timed: int = 50

    @classmethod
    def quick(cls) -> Extent:
        return cls(
            marked=16,
            repainted=8,
            compared=8,
            pool=16,
            siblings=4,
            scenes=100,
            photographs=100,
            compared_negatives=20,
            attacked=8,
            compared_attacked=4,
            costly_attacked=2,
            adversarial=1,
            strengths=(0.5, 1.0),
            more_strengths=(1.0,),
            victims=8,
            keys=(10, 1000, 10**5),
            timed=8,
        )


@dataclass
class Reading:
    """What a method read from N images."""

    margins: NDArray[np.float64]  # (N, bits); the sign is the bit
    scores: NDArray[np.float64]  # (N,) against each image's secret
    secrets: NDArray[np.uint8]  # (N, bits)

    def p_values(self, method: Method) -> NDArray[np.float64] | None:
        return method.p_values(self.margins, self.scores, self.secrets)

    @classmethod
    def nothing(cls, method: Method) -> Reading:
        """Of no image."""
        none = np.zeros((0, max(method.bits, 1)))
        return cls(none, np.zeros(0), np.zeros((0, method.bits), np.uint8))

    @classmethod
    def joined(cls, parts: Sequence[Reading]) -> Reading:
        parts = [part for part in parts if len(part.scores)] or parts[:1]
        return cls(
            np.concatenate([part.margins for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.secrets for part in parts]),
        )


@dataclass
class Harness:
    """Passed to every experiment."""

    model: ImageModel
    methods: list[Method]
    extent: Extent = field(default_factory=Extent)
    photographs: Path | None = None
    attacks: dict[str, Attack] = field(default_factory=lambda: dict(ATTACKS))
    siblings: dict[str, ImageModel] = field(default_factory=dict)  # other models of the family
    results: Path = Path("results")  # where published results lie, for plots of them
    training: Path | None = None  # the folder of the codec's training run
    deadline: float | None = None  # on the monotonic clock; what is not kept by then is left out

    @property
    def timer(self) -> WorkTimer:
        return self.model.timer

    @property
    def cache(self) -> Cache:
        return self.model.cache

    @cached_property
    def backbone(self) -> Backbone:
        """For the perceptual distance."""
        return find_backbone()

    @cached_property
    def scene_features(self) -> Backbone:
        """For the Frechet distance: few enough dimensions for some hundred images."""
        return scene_classifier()

    @cached_property
    def photograph_paths(self) -> list[Path]:
        return find_photographs(self.photographs)

    def specs(self, count: int, first: int = 0, fixed_secret: bool = False) -> list[ImageSpec]:
        """Prompts, seeds and secrets that no training saw."""
        known = self._specs.setdefault(fixed_secret, [])
        if len(known) < first + count:
            known += unseen_specs(first + count - len(known), first=len(known), fixed_secret=fixed_secret)
        return known[first : first + count]

    @cached_property
    def _specs(self) -> dict[bool, list[ImageSpec]]:
        return {}

    @cached_property
    def _identities(self) -> dict[int, tuple[Method, Recipe, Recipe]]:
        return {}

    def identity(self, method: Method) -> tuple[Recipe, Recipe]:
        """What its pictures and its readings depend on; asked for once, as weights are hashed for it."""
        if id(method) not in self._identities:
            self._identities[id(method)] = method, method.fingerprint(), method.reader()
        return self._identities[id(method)][1:]

    def clean_specs(self, method: Method, fixed_secret: bool = False) -> list[ImageSpec]:
        """Specs for figures without an attack: as many as the method's way of marking allows."""
        count = self.extent.compared if self.is_compared(method) else self.extent.marked
        if method.repaints:
            count = min(count, self.extent.repainted)
        return self.specs(count, fixed_secret=fixed_secret)

    def is_compared(self, method: Method) -> bool:
        """Whether a run is about another method, which is measured on more pictures."""
        return method.compared and method is not self.methods[0]

    def attacked_count(self, method: Method, attack: Attack) -> int:
        """Marked images for one attack at one strength."""
        extent, compared = self.extent, self.is_compared(method)
        count = extent.compared_attacked if compared else extent.attacked
        if method.costly:
            count = min(count, extent.costly_attacked)
        if attack.kind == "adversarial":
            count = min(count, extent.adversarial)
        return count

    def part(self, method: Method, attack: Attack | None = None) -> int:
        """Images whose readings are kept together: fewer where one takes seconds."""
        adversarial = attack is not None and attack.kind == "adversarial"
        return COSTLY_PART if method.costly or adversarial else PART

    def strengths(self, attack: Attack) -> tuple[float, ...]:
        """All of them for the paper's attacks, fewer for the rest."""
        waves = attack.kind != "adversarial" and attack.name in WAVES
        return self.extent.strengths if waves else self.extent.more_strengths

    @property
    def out_of_time(self) -> bool:
        """Whether only what is kept already may be used."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def secrets(self, method: Method, specs: Sequence[ImageSpec]) -> NDArray[np.uint8]:
        """The bits that each spec's picture carries, (N, bits)."""
        return np.stack([method.carried(spec.secret) for spec in specs])

    # --- work ------------------------------------------------------------------------------------------------

    def plain(self, specs: Sequence[ImageSpec], model: ImageModel | None = None) -> list[Image.Image]:
        return (model or self.model).plain(specs)

    def marked(
        self, method: Method, specs: Sequence[ImageSpec], model: ImageModel | None = None
    ) -> list[Image.Image]:
        return (model or self.model).marked(method, specs)

    def attacked(
        self, attack: Attack, images: Sequence[Image.Image], strength: float, base_seed: int = 0
    ) -> list[Image.Image]:
        return self.timer.do(
            f"attack {attack.name}",
            len(images),
            lambda: attack.on_all(images, strength, base_seed),
            lambda: list(images),
        )

    def scenes(self, count: int, first: int = 0) -> list[Image.Image]:
        def work() -> list[Image.Image]:
            return [scene(self.cache, index) for index in range(first, first + count)]

        return self.timer.do("painted scene", count, work, lambda: [self.model.blank] * count)

    def crops(self, count: int, first: int = 0) -> list[Image.Image]:
        def work() -> list[Image.Image]:
            return [crop(self.photograph_paths, index) for index in range(first, first + count)]

        return self.timer.do("crop of a photograph", count, work, lambda: [self.model.blank] * count)

    def read(self, method: Method, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> Reading:
        """Decode and score."""

        def blank() -> Reading:
            rng = np.random.default_rng(0)
            margins = rng.normal(size=(len(images), max(method.bits, 1)))
            return Reading(margins, rng.normal(size=len(images)), secrets)

        return self.timer.do(
            f"read by {method.name}", len(images), lambda: self._read(method, images, secrets), blank
        )

    def _read(self, method: Method, images: Sequence[Image.Image], secrets: NDArray[np.uint8]) -> Reading:
        if method.has_state:
            return Reading(*method.read_state(self._states(method, images), secrets), secrets)
        margins = np.zeros((len(images), 0))
        if method.bits:
            margins = np.concatenate([method.decode(batch) for batch in batches(images)])
        if method.counts:
            return Reading(margins, ((margins > 0) == secrets).sum(axis=1).astype(float), secrets)
        starts = range(0, len(images), 32)
        scores = [method.score(images[i : i + 32], secrets[i : i + 32]) for i in starts]
        return Reading(margins, np.concatenate(scores), secrets)

    def _states(self, method: Method, images: Sequence[Image.Image]) -> Tensor:
        """What a method reads from, found once for all methods that read from the same, (N, ...)."""
        shared = method.state_recipe()
        recipes = [shared | {"picture": picture_digest(image)} for image in images]
        missing = [i for i, recipe in enumerate(recipes) if not self.cache.has(recipe, "npz")]
        for batch in batches(missing):
            for i, state in zip(batch, method.state([images[i] for i in batch]), strict=True):
                self.cache.keep_arrays(recipes[i], {"state": state.float().cpu().numpy()})
        return torch.from_numpy(np.stack([self.cache.arrays(recipe)["state"] for recipe in recipes]))

    def encoded(self, images: Sequence[Image.Image]) -> Tensor:
        """Latents as the family's autoencoder sees the images, (N, C, h, w)."""
        vae, device = self.model.pipe.vae, self.model.pipe.device

        @torch.no_grad()
        def work() -> Tensor:
            parts = []
            for batch in batches(images, 16):
                parts.append(encode(vae, to_pixels(batch).to(device)).float().cpu())
            return torch.cat(parts)

        return self.timer.do(
            "encode", len(images), work, lambda: torch.zeros(len(images), *self.model.latent_shape)
        )

    def decoded(self, latents: Tensor) -> list[Image.Image]:
        """Pictures of latents, (N, C, h, w)."""
        return [image for batch in latents.split(16) for image in self.model.decoded(batch)]

    # --- readings, kept --------------------------------------------------------------------------------------

    def reading(
        self,
        method: Method,
        specs: Sequence[ImageSpec],
        attack: Attack | None = None,
        strength: float = 0.0,
        model: ImageModel | None = None,
    ) -> tuple[Reading, float | None]:
        """Marked pictures, attacked, read; and the attack's mean PSNR, if it leaves the size alone.

        Readings are kept a part at a time; out of time it is of as many of the specs as are kept, perhaps of none.
        """
        size = self.part(method, attack)
        parts: list[Reading] = []
        psnr: list[float] = []
        for first in range(0, len(specs), size):
            made = self._part(method, specs[first : first + size], attack, strength, model, first)
            if made is None:
                break
            parts.append(made[0])
            psnr += [made[1]] * len(made[0].scores)
        if not parts:
            return Reading.nothing(method), None
        return Reading.joined(parts), float(np.mean(psnr)) if np.isfinite(psnr).all() else None

    def make_part(self, method: Method, number: int, count: int, attack: Attack, strength: float) -> None:
        """The number-th part of a reading of `count` images, from 0; nothing where there is none or no time."""
        size = self.part(method, attack)
        specs = self.specs(count)[number * size : (number + 1) * size]
        if specs:
            self._part(method, specs, attack, strength, None, number * size)

    def _part(
        self,
        method: Method,
        specs: Sequence[ImageSpec],
        attack: Attack | None,
        strength: float,
        model: ImageModel | None,
        first: int,
    ) -> tuple[Reading, float] | None:
        secrets, place = self.secrets(method, specs), model or self.model

        def make() -> Arrays:
            images = self.marked(method, specs, model)
            changed = images if attack is None else self.attacked(attack, images, strength, first)
            found = self.read(method, changed, secrets)
            return {"margins": found.margins, "scores": found.scores, "psnr": mean_psnr(images, changed)}

        fingerprint, reader = self.identity(method)
        recipe: Recipe = {
            "reading": fingerprint,
            "model": place.digest,
            "specs": specs_digest(specs),
        }
        if attack is not None:
            recipe |= {"attack": attack.name, "value": attack.value(strength), "by": _weights(attack)}
        recipe |= {"sampling": [place.sampling.steps, place.sampling.guidance], "reader": reader}
        if self.out_of_time and not self.cache.has(recipe, "npz"):
            return None
        kept = self.cache.remember(recipe, make)
        return Reading(kept["margins"], kept["scores"], secrets), float(kept["psnr"])


def mean_psnr(images: Sequence[Image.Image], others: Sequence[Image.Image]) -> NDArray[np.float64]:
    """In dB, a single number; nan where sizes differ or nothing changed."""
    from diffmark.metrics import psnr

    if any(a.size != b.size for a, b in zip(images, others, strict=True)):
        return np.array(np.nan)
    changed = [(a, b) for a, b in zip(images, others, strict=True) if a is not b]
    return np.array(np.mean([psnr(a, b) for a, b in changed]) if changed else np.nan)


def specs_digest(specs: Sequence[ImageSpec]) -> str:
    text = "\n".join(f"{spec.prompt}|{spec.seed}|{spec.secret.tobytes().hex()}" for spec in specs)
    return hashlib.sha256(text.encode()).hexdigest()


def _weights(attack: Attack) -> str:
    return getattr(attack.distort, "weights", "")
