"""Pictures for experiments: each is made once and kept under the hash of all it depends on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffmark.generation import Order, Sampling
from diffmark.methods.base import Method
from diffmark.secret import to_hex

FIRST_SEED = 1_000_000  # far from any seed that training uses


@dataclass
class Studio:
    """A pipeline, how it is run, and the folder where its pictures are kept."""

    folder: Path
    pipe: Any
    model: str
    sampling: Sampling

    def plain(self, order: Order) -> Image.Image:
        """The picture of an order without any mark."""

        def paint() -> Image.Image:
            generator = torch.Generator("cpu").manual_seed(order.seed)
            steps, guidance = self.sampling.steps, self.sampling.guidance
            output = self.pipe(
                order.prompt, num_inference_steps=steps, guidance_scale=guidance, generator=generator
            )
            return output.images[0]

        return self._kept({**self._recipe(order), "method": None}, paint)

    def marked(self, method: Method, order: Order) -> Image.Image:
        """The picture of an order with a method's mark, for the first `bits` bits of its secret."""
        order = replace(order, secret=order.secret[: method.bits] if method.bits else order.secret)

        def paint() -> Image.Image:
            return (
                method.generate(order) if method.generates else method.embed(self.plain(order), order.secret)
            )

        recipe = {**self._recipe(order), "secret": to_hex(order.secret), **method.fingerprint()}
        return self._kept(recipe, paint)

    def _recipe(self, order: Order) -> dict[str, Any]:
        run = {"steps": self.sampling.steps, "guidance": self.sampling.guidance}
        return {"model": self.model, "prompt": order.prompt, "seed": order.seed, **run}

    def _kept(self, recipe: dict[str, Any], make: Callable[[], Image.Image]) -> Image.Image:
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]
        path = self.folder / digest[:2] / f"{digest}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            make().save(partial, "PNG")
            os.replace(partial, path)
        with Image.open(path) as image:
            return image.convert("RGB")


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


def photograph_crops(folder: Path, count: int, side: int = 256, seed: int = 0) -> Iterator[Image.Image]:
    """Random square crops of the photographs in a folder, resized to `side`."""
    paths = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp")
    )
    if not paths:
        raise ValueError(f"{folder} holds no photographs")
    rng = np.random.default_rng(seed)
    for index in range(count):
        with Image.open(paths[index % len(paths)]) as opened:
            image = opened.convert("RGB")
        size = int(min(image.size) * rng.uniform(0.5, 1.0))
        x, y = (int(rng.integers(extent - size + 1)) for extent in image.size)
        yield image.crop((x, y, x + size, y + size)).resize((side, side), Image.Resampling.LANCZOS)


def painted_scenes(count: int, first: int = 0) -> Iterator[Image.Image]:
    """Pictures of the embedded family's painter that training never saw."""
    from diffmark.vista.paint import paint
    from diffmark.vista.scenes import HELD_OUT, random_scene

    for index in range(first, first + count):
        yield Image.fromarray(np.asarray(paint(random_scene(HELD_OUT + index))))


def batches(items: Iterable[Any], size: int = 32) -> Iterator[list[Any]]:
    """Lists of up to `size` items."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def settings(studio: Studio) -> dict[str, Any]:
    """What the pictures depend on, for a result's JSON."""
    return {"model": studio.model, "sampling": asdict(studio.sampling)}
