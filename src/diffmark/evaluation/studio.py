"""Pictures of a model for experiments: painted in batches, each made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from diffmark.evaluation.memory import Memory, Recipe
from diffmark.evaluation.meter import Meter
from diffmark.latent.vae import decode
from diffmark.mark.generation import Order, Sampling
from diffmark.provenance import weights_digest

if TYPE_CHECKING:
    from diffmark.vista.scenes import Scene

FIRST_SEED = 1_000_000  # far from any seed that training uses
BATCH = 8


@dataclass
class Studio:
    """A pipeline, how it is run, and the folder where its pictures are kept."""

    folder: Path
    pipe: Any
    model: str
    sampling: Sampling
    meter: Meter = field(default_factory=Meter)

    @cached_property
    def memory(self) -> Memory:
        return Memory(self.folder)

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

    def latents(self, orders: Sequence[Order]) -> Tensor:
        """z0 of each order without any mark, (N, C, h, w)."""
        missing = [order for order in orders if not self.memory.has(self._unmarked(order), "npz")]
        for batch in batches(missing, BATCH):
            for order, z0 in zip(batch, self._paint(batch), strict=True):
                self.memory.keep_arrays(self._unmarked(order), {"z0": z0.float().cpu().numpy()})
        kept = [self.memory.arrays(self._unmarked(order))["z0"] for order in orders]
        return torch.from_numpy(np.stack(kept))

    def plain(self, orders: Sequence[Order]) -> list[Image.Image]:
        """The picture of each order without any mark."""
        missing = [order for order in orders if not self.memory.has(self._unmarked(order), "png")]
        for batch in batches(missing, BATCH):
            for order, image in zip(batch, self.developed(self.latents(batch)), strict=True):
                self.memory.keep_image(self._unmarked(order), image)
        return [self.memory.image(self._unmarked(order)) for order in orders]

    def marked(self, method: Method, orders: Sequence[Order]) -> list[Image.Image]:
        """The picture of each order with a method's mark, for the bits that the method carries of its secret."""
        own = [replace(o, secret=method.carried(o.secret) if method.bits else o.secret) for o in orders]
        missing = [order for order in own if not self.memory.has(self._of(method, order), "png")]
        for batch in batches(missing, BATCH):
            for order, image in zip(batch, self._mark(method, batch), strict=True):
                self.memory.keep_image(self._of(method, order), image)
        return [self.memory.image(self._of(method, order)) for order in own]

    @torch.no_grad()
    def developed(self, z0: Tensor) -> list[Image.Image]:
        """Latents (N, C, h, w) as pictures."""
        return self.meter.do(
            "decode latents",
            len(z0),
            lambda: to_images(decode(self.pipe.vae, z0.to(self.pipe.device))),
            lambda: [self.blank] * len(z0),
        )

    def _mark(self, method: Method, orders: list[Order]) -> list[Image.Image]:
        secrets = np.stack([order.secret for order in orders])
        if method.finishes:
            z0 = self.latents(orders)
            return self._timed(f"finish by {method.name}", orders, lambda: method.finish(z0, secrets))
        if method.generates:
            return self._timed(f"generate by {method.name}", orders, lambda: method.generate_all(orders))
        pairs = list(zip(self.plain(orders), orders, strict=True))
        return self._timed(
            f"embed by {method.name}",
            orders,
            lambda: [method.embed(image, order.secret) for image, order in pairs],
        )

    def _timed(
        self, what: str, orders: list[Order], work: Callable[[], list[Image.Image]]
    ) -> list[Image.Image]:
        return self.meter.do(what, len(orders), work, lambda: [self.blank] * len(orders))

    def _paint(self, orders: list[Order]) -> Tensor:
        def work() -> Tensor:
            output = self.pipe(
                [order.prompt for order in orders],
                num_inference_steps=self.sampling.steps,
                guidance_scale=self.sampling.guidance,
                generator=[torch.Generator("cpu").manual_seed(order.seed) for order in orders],
                output_type="latent",
            )
            return output.images

        return self.meter.do(
            f"generate in {self.sampling.steps} steps",
            len(orders),
            work,
            lambda: torch.zeros(len(orders), *self.latent_shape),
        )

    def _unmarked(self, order: Order) -> Recipe:
        run = {"steps": self.sampling.steps, "guidance": self.sampling.guidance}
        return {"model": self.digest, "prompt": order.prompt, "seed": order.seed, **run}

    def _of(self, method: Method, order: Order) -> Recipe:
        return {**self._unmarked(order), "secret": order.secret.tobytes().hex(), **method.fingerprint()}


def to_images(pixels: Tensor) -> list[Image.Image]:
    """Pixels in [-1, 1], (N, 3, H, W), as 8-bit pictures."""
    levels = ((pixels.float().clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(picture) for picture in levels]


def unseen_orders(count: int, length: int = 256, first: int = 0, fixed_secret: bool = False) -> list[Order]:
    """Prompts of held-out scenes with seeds and secrets of their own; always the same for the same numbers.

    `length` is the longest secret that a method may ask for; a method takes the bits it needs.
    """
    from diffmark.vista.scenes import HELD_OUT, caption, random_scene

    orders = []
    for index in range(first, first + count):
        rng = np.random.default_rng([0 if fixed_secret else index + 1, 77])
        secret = rng.integers(0, 2, length).astype(np.uint8)
        orders.append(Order(caption(random_scene(HELD_OUT + index)), secret, FIRST_SEED + index))
    return orders


def painted_scenes(count: int, first: int = 0) -> Iterator[Image.Image]:
    """Pictures of the embedded family's painter that no training saw."""
    from diffmark.vista.paint import paint
    from diffmark.vista.scenes import HELD_OUT, random_scene

    for index in range(first, first + count):
        yield Image.fromarray(np.asarray(paint(random_scene(HELD_OUT + index))))


def scene_of(order: Order) -> Scene:
    """The held-out scene that an order's prompt describes."""
    from diffmark.vista.scenes import HELD_OUT, random_scene

    return random_scene(HELD_OUT + order.seed - FIRST_SEED)


def settings(studio: Studio) -> dict[str, Any]:
    """What the pictures depend on, for a result's JSON."""
    return {"model": studio.model, "weights": studio.digest, "sampling": asdict(studio.sampling)}
