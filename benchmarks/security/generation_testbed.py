"""Pipeline, codec and pictures of one run on the generation layer; what takes long is kept in the run's folder.

The codec's networks are public, its operator key is not. Attackers have the autoencoder, and more as each row says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pictures import fixed_keys
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from diffmark.detection.latent import Detector
from diffmark.evaluation.batches import batches
from diffmark.evaluation.visibility import ssimulacra2
from diffmark.images import read_image
from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.vae import decode, encode
from diffmark.mark.context import watermark
from diffmark.mark.loading import default_guidance, load_pipeline
from diffmark.secret import Bits, to_hex
from diffmark.vista.scenes import caption, random_scene
from security import measuring
from security.measuring import Row

SEED = 24
FIRST = {"test": 1_000_001, "tune": 2_000_001, "seen": 3_000_001}  # seeds of scenes and noise
ONE, FRESH, NONE = "one secret", "fresh secrets", "no mark"
STRENGTHS = (1.5, 3.0, 5.0, 8.0)  # levels RMS, of what is added or taken away in latents
EPSILONS = (2.0, 4.0, 8.0)  # levels of 255
STEPS_PGD = 20
SLACK = 10.0  # of SSIMULACRA2, worse than the mark itself
UNMARKED = 100  # pictures without a mark, which who has the model can make
BATCH = 8

Attack = Callable[[Image.Image, float], Image.Image]
Forge = Callable[[Image.Image, int, str, float], Image.Image]  # of a cover, its number, part, and strength
Rows = NDArray[np.float32]


class GenerationTestbed:
    """The codec is used under the operator's key."""

    def __init__(
        self, folder: Path, codec: str, model: str, steps: int, victims: int, tuning: int, pool: int
    ) -> None:
        torch.set_num_threads(1)
        self.folder, self.counts = folder, {"test": victims, "tune": tuning, "seen": pool}
        self._rows: dict[str, list[Rows]] = {}
        self.source, self.model, self.steps = codec, model, steps
        _, self.key, self.strangers_key = fixed_keys(3)
        self.codec = Codec.from_pretrained(codec).requires_grad_(False).use_key(self.key)
        self.in_noise = isinstance(self.codec, NoiseCodec)
        self.length = self.codec.config.length
        self.detector = Detector(self.codec, self.pipe.vae.requires_grad_(False), fpr=measuring.FPR)

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.model)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    # --- pictures -------------------------------------------------------------------------------------------

    def secrets(self, number: int, count: int) -> Bits:
        return np.random.default_rng([SEED, number]).integers(2, size=(count, self.length), dtype=np.uint8)

    def of(self, part: str, kind: str) -> Bits:
        """The secrets in pictures of a part."""
        count = self.counts[part]
        if kind == ONE:
            return np.repeat(self.secrets(3, 1), count, axis=0)
        return self.secrets(list(FIRST).index(part), count)

    @cache  # noqa: B019 - one testbed a process
    def made(self, part: str, kind: str, count: int | None = None) -> list[Image.Image]:
        """The first pictures of a part, each with its own secret, all with one, or unmarked."""
        secrets = self.of(part, kind)[:count]
        return self.pictures(part, None if kind == NONE else secrets, len(secrets))

    def pictures(self, part: str, secrets: Bits | None, count: int) -> list[Image.Image]:
        """The first pictures of a part with these secrets, or unmarked; each is painted once."""
        words = ["plain"] * count if secrets is None else [to_hex(secret) for secret in secrets]
        places = [self.folder / "made" / f"{part}-{i:04d}-{word}.png" for i, word in enumerate(words)]
        missing = [i for i, place in enumerate(places) if not place.exists()]
        for batch in tqdm(batches(missing, BATCH), f"{part} pictures", disable=None):
            bits = np.zeros((len(batch), self.length), np.uint8) if secrets is None else secrets[batch]
            seeds = [FIRST[part] + i for i in batch]
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            strength = 0.0 if secrets is None else 1.0
            with watermark(self.pipe, self.codec, bits, strength, pixel=False, verify=None):
                images = self.painted([prompt(seed) for seed in seeds], generator=generators)
            for i, image in zip(batch, images, strict=True):
                places[i].parent.mkdir(exist_ok=True)
                image.save(places[i].with_suffix(".part"), "PNG", compress_level=1)
                places[i].with_suffix(".part").replace(places[i])
        return [Image.open(place).convert("RGB") for place in places]

    def painted(self, prompts: list[str], **more: Any) -> list[Image.Image]:
        """The pipeline's pictures."""
        guidance = default_guidance(self.model)
        return self.pipe(prompts, num_inference_steps=self.steps, guidance_scale=guidance, **more).images

    # --- latents --------------------------------------------------------------------------------------------

    def pixels(self, image: Image.Image) -> Tensor:
        return torch.from_numpy(read_image(image).resized(self.detector.image_size).pixels())[None]

    @torch.no_grad()
    def latents(self, image: Image.Image) -> Tensor:
        return encode(self.detector.vae, self.pixels(image))

    def rows(self, kind: str, count: int) -> Rows:
        """Latents of pictures that the attacker has seen, (N, D)."""
        kept = self._rows.setdefault(kind, [])
        if len(kept) < count:
            images = self.made("seen", kind, count)[len(kept) :]
            kept += [self.latents(image).flatten().numpy() for image in images]
        return np.stack(kept[:count])

    @cached_property
    def unmarked(self) -> int:
        """Pictures without a mark that the attacker has made himself."""
        return min(UNMARKED, self.counts["seen"])

    @cached_property
    def unmarked_mean(self) -> Rows:
        """Of pictures of the prompts that were seen, made without a mark."""
        return self.rows(NONE, self.unmarked).mean(axis=0)

    @torch.no_grad()
    def shifted(self, image: Image.Image, change: Rows, strength: float) -> Image.Image:
        """The image with what a small change of its latents does to it, at `strength` levels RMS."""
        z = self.latents(image)
        small = torch.from_numpy(change.astype(np.float32)).view_as(z)
        small = small * (0.05 * z.norm() / small.norm().clamp_min(1e-9))
        difference = decode(self.detector.vae, z + small) - decode(self.detector.vae, z)
        wave = difference[0].permute(1, 2, 0).numpy()
        wave = wave * (strength / max(float(np.sqrt(np.mean(wave**2))), 1e-9))
        return Image.fromarray(
            np.clip(np.rint(np.asarray(image, np.float32) + wave), 0, 255).astype(np.uint8)
        )

    def steered(self, image: Image.Image, gain: Callable[[Tensor], Tensor], epsilon: float) -> Image.Image:
        """Projected gradient ascent on a gain of the pixels, L-infinity, within `epsilon` levels of 255."""
        start = self.pixels(image)
        bound, step = epsilon / 127.5, 2.5 * epsilon / 127.5 / STEPS_PGD
        pixels = start.clone()
        for _ in range(STEPS_PGD):
            pixels.requires_grad_(True)
            (gradient,) = torch.autograd.grad(gain(pixels), pixels)
            with torch.no_grad():
                moved = pixels + step * gradient.sign()
                pixels = (start + (moved - start).clamp(-bound, bound)).clamp(-1, 1)
        levels = (pixels.detach()[0].permute(1, 2, 0).numpy() + 1) * 127.5
        return Image.fromarray(levels.round().astype(np.uint8))

    @cached_property
    def least(self) -> float:
        """The quality that an attack has to leave: as much as elsewhere, or what the codec's own mark leaves."""
        if self.in_noise:  # such a mark is not seen at all
            return measuring.LEAST_QUALITY
        own = measuring.left(self.made("tune", FRESH), self.made("tune", NONE), metric=ssimulacra2)
        return min(measuring.LEAST_QUALITY, own - SLACK)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, images: measuring.Images, secrets: Bits) -> Row:
        found = [self.detector.detect(image, secret) for image, secret in zip(images, secrets, strict=True)]
        return measuring.figures(found, secrets)

    def unmarked_ones(self, part: str) -> list[list[Image.Image]]:
        """The same pictures without a mark: a mark in the noise makes others, so there are none."""
        return [] if self.in_noise else [self.made(part, NONE)]

    def removal(self, attack: Attack, strengths: Sequence[float] = (0.0,), kind: str = FRESH) -> Row:
        """An attack on victims, its strength chosen on others."""

        def tried(strength: float) -> tuple[float, float]:
            before = self.made("tune", kind)
            after = [attack(image, strength) for image in before]
            row = self.read(after, self.of("tune", kind))
            good = measuring.left(after, before, *self.unmarked_ones("tune"), metric=ssimulacra2)
            return row["found"]["rate"], good

        chosen = measuring.least_removing(strengths, tried, self.least)
        before = self.made("test", kind)
        after = [attack(image, chosen) for image in before]
        row = self.read(after, self.of("test", kind))
        row |= measuring.quality(before, after, *self.unmarked_ones("test"))
        return row | ({"strength": chosen} if len(strengths) > 1 else {})

    def forgery(
        self, forge: Forge, secrets: Callable[[str], Bits], strengths: Sequence[float] = STRENGTHS
    ) -> Row:
        """A mark put on unmarked pictures of other prompts."""

        def made(part: str, strength: float) -> tuple[Row, list[Image.Image], list[Image.Image]]:
            covers = self.made(part, NONE)[::-1]
            after = [forge(cover, i, part, strength) for i, cover in enumerate(covers)]
            return self.read(after, secrets(part)), covers, after

        def tried(strength: float) -> tuple[float, float]:
            row, before, after = made("tune", strength)
            return row["found"]["rate"], measuring.left(after, before, metric=ssimulacra2)

        chosen = measuring.most_found(strengths, tried, self.least) if len(strengths) > 1 else strengths[0]
        row, before, after = made("test", chosen)
        return row | measuring.quality(before, after) | {"strength": chosen}


def prompt(seed: int) -> str:
    return caption(random_scene(seed))
