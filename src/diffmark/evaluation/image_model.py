"""Pictures of a model for experiments: painted in batches, each made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffmark.baselines.base import Method
from diffmark.evaluation.batches import batches
from diffmark.evaluation.cache import Cache, Recipe
from diffmark.evaluation.timing import WorkTimer
from diffmark.latent.pictures import to_images
from diffmark.latent.vae import decode
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.provenance import weights_digest

if TYPE_CHECKING:
    from diffmark.vista.scenes import Scene

FIRST_SEED = 1_000_000  # far from any seed that training uses
BATCH = 8


@dataclass
class ImageModel:
    """A pipeline, how it is run, and the folder where its pictures are kept."""

    folder: Path
    pipe: Any
    name: str
    sampling: Sampling
    timer: WorkTimer = field(default_factory=WorkTimer)

    @cached_property
    def cache(self) -> Cache:
        return Cache(self.folder)

    @cached_property
    def digest(self) -> str:
        """Of the weights that paint: a model that was trained on makes other pictures under the same name."""
        parts = (getattr(self.pipe, name, None) for name in ("unet", "text_encoder", "vae"))
        return weights_digest(*(part for part in parts if part is not None))

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """(C, h, w)."""
        side = self.pipe.unet.config.sample_size
        return self.pipe.vae.config.latent_channels, side, side

    @cached_property
    def blank(self) -> Image.Image:
        """What stands for a picture where work is only counted."""
        return Image.new("RGB", (8 * self.latent_shape[2], 8 * self.latent_shape[1]), "grey")

    def latents(self, specs: Sequence[ImageSpec]) -> Tensor:
        """z0 of each spec without any mark, (N, C, h, w)."""
        missing = [spec for spec in specs if not self.cache.has(self._unmarked(spec), "npz")]
        for batch in batches(missing, BATCH):
            for spec, z0 in zip(batch, self._generated(batch), strict=True):
                self.cache.keep_arrays(self._unmarked(spec), {"z0": z0.float().cpu().numpy()})
        kept = [self.cache.arrays(self._unmarked(spec))["z0"] for spec in specs]
        return torch.from_numpy(np.stack(kept))

    def plain(self, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """The picture of each spec without any mark."""
        missing = [spec for spec in specs if not self.cache.has(self._unmarked(spec), "png")]
        for batch in batches(missing, BATCH):
            for spec, image in zip(batch, self.decoded(self.latents(batch)), strict=True):
                self.cache.keep_image(self._unmarked(spec), image)
        return [self.cache.image(self._unmarked(spec)) for spec in specs]

    def marked(self, method: Method, specs: Sequence[ImageSpec]) -> list[Image.Image]:
        """The picture of each spec with a method's mark, for the bits that the method carries of its secret."""
        own = [replace(o, secret=method.carried(o.secret) if method.bits else o.secret) for o in specs]
        missing = [spec for spec in own if not self.cache.has(self._of(method, spec), "png")]
        for batch in batches(missing, BATCH):
            for spec, image in zip(batch, self._mark(method, batch), strict=True):
                self.cache.keep_image(self._of(method, spec), image)
        return [self.cache.image(self._of(method, spec)) for spec in own]

    @torch.no_grad()
    def decoded(self, z0: Tensor) -> list[Image.Image]:
        """Latents (N, C, h, w) as pictures."""
        return self.timer.do(
            "decode latents",
            len(z0),
            lambda: to_images(decode(self.pipe.vae, z0.to(self.pipe.device))),
            lambda: [self.blank] * len(z0),
        )

    def _mark(self, method: Method, specs: list[ImageSpec]) -> list[Image.Image]:
        secrets = np.stack([spec.secret for spec in specs])
        if method.upon is not None:
            first = list(zip(self.marked(method.upon, specs), specs, strict=True))
            return self._timed(
                f"embed by {method.name}", specs, lambda: [method.embed(x, spec.secret) for x, spec in first]
            )
        if method.finishes:
            z0 = self.latents(specs)
            return self._timed(f"finish by {method.name}", specs, lambda: method.finish(z0, secrets))
        if method.generates:
            return self._timed(f"generate by {method.name}", specs, lambda: method.generate_all(specs))
        pairs = list(zip(self.plain(specs), specs, strict=True))
        return self._timed(
            f"embed by {method.name}",
            specs,
            lambda: [method.embed(image, spec.secret) for image, spec in pairs],
        )

    def _timed(
        self, what: str, specs: list[ImageSpec], work: Callable[[], list[Image.Image]]
    ) -> list[Image.Image]:
        return self.timer.do(what, len(specs), work, lambda: [self.blank] * len(specs))

    def _generated(self, specs: list[ImageSpec]) -> Tensor:
        def work() -> Tensor:
            output = self.pipe(
                [spec.prompt for spec in specs],
                num_inference_steps=self.sampling.steps,
                guidance_scale=self.sampling.guidance,
                generator=[torch.Generator("cpu").manual_seed(spec.seed) for spec in specs],
                output_type="latent",
            )
            return output.images

        return self.timer.do(
            f"generate in {self.sampling.steps} steps",
            len(specs),
            work,
            lambda: torch.zeros(len(specs), *self.latent_shape),
        )

    def _unmarked(self, spec: ImageSpec) -> Recipe:
        run = {"steps": self.sampling.steps, "guidance": self.sampling.guidance}
        return {"model": self.digest, "prompt": spec.prompt, "seed": spec.seed, **run}

    def _of(self, method: Method, spec: ImageSpec) -> Recipe:
        if id(method) not in self._fingerprints:  # weights are hashed for it
            self._fingerprints[id(method)] = method, method.fingerprint()
        return {
            **self._unmarked(spec),
            "secret": spec.secret.tobytes().hex(),
            **self._fingerprints[id(method)][1],
        }

    @cached_property
    def _fingerprints(self) -> dict[int, tuple[Method, Recipe]]:
        return {}


def unseen_specs(
    count: int, length: int = 256, first: int = 0, fixed_secret: bool = False
) -> list[ImageSpec]:
    """Prompts of held-out scenes with seeds and secrets of their own; always the same for the same numbers.

    `length` is the longest secret that a method may ask for; a method takes the bits it needs.
    """
    from diffmark.vista.scenes import HELD_OUT, caption, random_scene

    specs = []
    for index in range(first, first + count):
        rng = np.random.default_rng([0 if fixed_secret else index + 1, 77])
        secret = rng.integers(0, 2, length).astype(np.uint8)
        specs.append(ImageSpec(caption(random_scene(HELD_OUT + index)), secret, FIRST_SEED + index))
    return specs


def scene_of(spec: ImageSpec) -> Scene:
    """The held-out scene that a spec's prompt describes."""
    from diffmark.vista.scenes import HELD_OUT, random_scene

    return random_scene(HELD_OUT + spec.seed - FIRST_SEED)


def settings(model: ImageModel) -> dict[str, Any]:
    """What the pictures depend on, for a result's JSON."""
    return {"model": model.name, "weights": model.digest, "sampling": asdict(model.sampling)}
