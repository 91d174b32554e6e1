"""Pictures and latents for training: painted once, kept as arrays on disk, read by index."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from diffmark.latent.pictures import from_levels
from diffmark.provenance import weights_digest
from diffmark.vista.paint import PAINTER, paint, places_of_things
from diffmark.vista.scenes import Scene, random_scene, twin_scene

Picture = NDArray[np.uint8]
REACH = 2  # latents around a small thing that weigh as much as it


def painted(
    folder: Path,
    count: int,
    size: int = 256,
    first_seed: int = 0,
    scene_of: Callable[[int], Scene] = random_scene,
) -> Picture:
    """The scenes `first_seed` ... as (count, size, size, 3) uint8, painted into `folder` if not yet there."""
    path = folder / f"scenes-{PAINTER}-{first_seed}-{count}-{size}{_kind(scene_of)}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        pictures = np.lib.format.open_memmap(partial, "w+", np.uint8, (count, size, size, 3))
        for i in tqdm(range(count), desc="painting", disable=None):
            pictures[i] = paint(scene_of(first_seed + i), size)
        pictures.flush()
        partial.replace(path)
    return np.load(path, mmap_mode="r")


def places(
    folder: Path, count: int, size: int = 32, scene_of: Callable[[int], Scene] = random_scene
) -> NDArray[np.bool_]:
    """Latents that show a small thing of the scenes 0 ..., (count, size, size), found once and kept in `folder`."""
    path = folder / f"places-{PAINTER}-{count}-{size}{_kind(scene_of)}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found = np.zeros((count, size, size), bool)
        for i in tqdm(range(count), desc="finding things", disable=None):
            pixels = places_of_things(scene_of(i))
            found[i] = pixels.reshape(size, pixels.shape[0] // size, size, -1).mean((1, 3)) > 0.1
        partial = path.with_suffix(".partial.npy")
        np.save(partial, found)
        partial.replace(path)
    return np.load(path)


def _kind(*makers: Callable[..., Any] | None) -> str:
    """What tells a cached file of other pictures from one of plain scenes."""
    return "".join(f"-{maker.__name__}" for maker in makers if maker not in (None, random_scene))


@dataclass(frozen=True)
class Landscapes:
    """What a denoiser learns from: scenes, their latents (n, 4, 32, 32) and where small things are (n, 32, 32).

    With twins, the second half are the twins of the first, and small things are the objects that a scene has and
    its twin has not.
    """

    scenes: Sequence[Scene]
    latents: Tensor
    places: Tensor | None = None
    twins: bool = False

    def emphasised(self, error: Tensor, emphasis: float, picked: NDArray[np.int64]) -> Tensor:
        """An error (B, C, H, W) of the scenes `picked`, 1 + `emphasis` times itself around small things.

        With twins also where the twin has one. Else houses come uncalled: they would weigh more than meadows. And
        around, not only there: else wherever a bird may be the answer is more bird than there is, and flocks run
        into strands.
        """
        if self.places is None:
            return error
        places = self.places[torch.from_numpy(picked)]
        if self.twins:
            places = places | self.places[torch.from_numpy(self._twin(picked))]
        around = F.max_pool2d(places[:, None].float(), 2 * REACH + 1, stride=1, padding=REACH)
        return error * (1 + emphasis * around)

    def uncalled(self, error: Tensor, picked: NDArray[np.int64]) -> Tensor:
        """An error (B, C, H, W) where `picked` have objects that their twins have not; elsewhere none."""
        assert self.places is not None
        places = self.places[torch.from_numpy(picked)][:, None].float()
        return error * places / places.mean((1, 2, 3), keepdim=True).clamp(min=0.02)

    def _twin(self, picked: NDArray[np.int64]) -> NDArray[np.int64]:
        return (picked + len(self.latents) // 2) % len(self.latents)


def landscapes(
    vae: Any,
    folder: Path,
    count: int,
    look: Callable[[Picture], Picture] | None = None,
    small_things: bool = False,
    twins: bool = False,
) -> Landscapes:
    """The scenes 0 ... `count` - 1, with the places of `small_things`, and the `twins` of all."""
    kinds = [random_scene, *([twin_scene] if twins else [])]
    latents = torch.stack([encoded(vae, folder, count, look=look, scene_of=kind) for kind in kinds])
    marked = None
    if small_things:
        marked = torch.from_numpy(np.stack([places(folder, count, scene_of=kind) for kind in kinds]))
        if twins:  # the sun is a small thing of both
            marked &= (latents[0] - latents[1]).abs().amax(1) > 0.1
        marked = marked.flatten(0, 1)
    return Landscapes([kind(i) for kind in kinds for i in range(count)], latents.flatten(0, 1), marked, twins)


def photographs(folder: Path) -> list[Picture]:
    """Every JPEG and PNG under `folder`, as (height, width, 3) uint8."""
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no .jpg or .png in it")
    return [np.asarray(Image.open(path).convert("RGB")) for path in paths]


def random_crop(
    rng: np.random.Generator, scenes: Picture, photos: list[Picture], size: int, photo_share: float
) -> Picture:
    """A (size, size, 3) part of a scene or, by `photo_share`, of a photograph, or its mirror image."""
    photo = bool(photos) and rng.random() < photo_share
    pictures = photos if photo else scenes
    picture = pictures[int(rng.integers(len(pictures)))]
    if photo and rng.random() < 0.5:
        picture = picture[::2, ::2]
    y, x = (int(rng.integers(side - size + 1)) for side in picture.shape[:2])
    part = picture[y : y + size, x : x + size]
    return part[:, ::-1] if rng.random() < 0.5 else part


def random_crops(
    rng: np.random.Generator,
    scenes: Picture,
    photos: list[Picture],
    count: int,
    size: int,
    photo_share: float,
) -> Tensor:
    """Random parts as pixels, (count, 3, size, size) in [-1, 1]."""
    return from_levels(np.stack([random_crop(rng, scenes, photos, size, photo_share) for _ in range(count)]))


@torch.no_grad()
def encoded(vae: Any, folder: Path, count: int, first_seed: int = 0, size: int = 256,
            look: Callable[[Picture], Picture] | None = None,
            scene_of: Callable[[int], Scene] = random_scene) -> Tensor:  # fmt: skip
    """Scaled latents of the scenes `first_seed` ..., (count, 4, size/8, size/8) float32, kept in `folder`."""
    kind = f"{weights_digest(vae)[:8]}-{PAINTER}-{first_seed}-{count}-{size}{_kind(look, scene_of)}"
    path = folder / f"latents-{kind}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pictures = painted(folder, count, size, first_seed, scene_of)
        parts = []
        for start in tqdm(range(0, count, 16), desc="encoding", disable=None):
            batch = pictures[start : start + 16]
            if look is not None:
                batch = np.stack([look(picture) for picture in batch])
            mean = vae.encode(from_levels(batch)).latent_dist.mode()
            parts.append((mean * vae.config.scaling_factor).half().numpy())
        partial = path.with_suffix(".partial.npy")
        np.save(partial, np.concatenate(parts))
        partial.replace(path)
    return torch.from_numpy(np.load(path)).float()
