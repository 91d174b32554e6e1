"""Pictures, keys and marks of one run on the pixel layer; what takes long is kept in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pictures import Row, files, fixed_keys
from PIL import Image, ImageOps
from tqdm import tqdm

from diffmark.detection.pixel import PixelDetector
from diffmark.keys.ring import KeyRing
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import Bits, to_hex
from security import measuring, spectra

SIDE = 512
SEED = 24
SETS = 16  # keys that a picture's own is drawn from, in the rows on several sets of patterns
STRENGTHS = (0.75, 1.5, 3.0, 5.0)  # grey levels RMS, of what is added or taken away
ONE, FRESH, MANY = "one secret", "fresh secrets", f"fresh secrets, {SETS} sets of patterns"

Features = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Victim:
    """A picture with and without its mark."""

    cover: Image.Image
    marked: Image.Image
    secret: Bits


Attack = Callable[[Victim, float], Image.Image]
Finish = Callable[[Image.Image], Image.Image]


class Testbed:
    """The operator has the private key, anybody the public one, a stranger a third."""

    def __init__(self, folders: list[Path], folder: Path, victims: int, tuning: int, pool: int) -> None:
        self.folders, self.folder = folders, folder
        self.counts = {"test": victims, "tune": tuning}
        self.pool_size = pool
        self._features: dict[str, list[spectra.Vector]] = {}
        keys = fixed_keys(2 + SETS)
        self.public, self.private, self.stranger = (PixelCodec(key) for key in keys[:3])
        self.sets = [self.private, *(PixelCodec(key) for key in keys[3:])]
        self.detectors = {
            codec.key.id: PixelDetector(codec, fpr=measuring.FPR) for codec in (self.public, self.private)
        }
        ring = KeyRing(tuple(codec.key for codec in self.sets), "the benchmark")
        self.ring = PixelDetector(ring, fpr=measuring.FPR)

    def secrets(self, number: int, count: int) -> Bits:
        return np.random.default_rng([SEED, number]).integers(2, size=(count, 64), dtype=np.uint8)

    # --- victims --------------------------------------------------------------------------------------------

    def paths(self, part: str) -> list[Path]:
        """Victims of a part, spread over the folders and over each of them."""
        count, found = self.counts[part], []
        for index, folder in enumerate(self.folders):
            listed = files(folder, part)
            own = count // len(self.folders) + (index < count % len(self.folders))
            found += [listed[i] for i in np.linspace(0, len(listed) - 1, own).astype(int)]
        return found

    @cache  # noqa: B019 - one testbed a process
    def covers(self, part: str) -> list[Image.Image]:
        return [opened(path) for path in self.paths(part)]

    @cache  # noqa: B019
    def victims(self, part: str, public: bool = False, one_secret: bool = False) -> list[Victim]:
        """Each with a secret of its own, or all with the one of the pool of ONE."""
        codec = self.public if public else self.private
        covers = self.covers(part)
        secrets = self.secrets(1 + (part == "test"), len(covers))
        if one_secret:
            secrets = np.repeat(self.secrets(5, 1), len(covers), axis=0)
        return [
            Victim(cover, self.kept(codec, cover, secret, f"{part}-{number}"), secret)
            for number, (cover, secret) in enumerate(zip(covers, secrets, strict=True))
        ]

    def kept(
        self, codec: PixelCodec, cover: Image.Image, secret: Bits, name: str, fitted: bool = True
    ) -> Image.Image:
        """A marked picture, made once; with a mark that is not `fitted`, as pipelines write it."""
        path = self.folder / "marked" / f"{name}-{codec.key.id}-{to_hex(secret)}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            if fitted:
                marked = codec.embed(cover, secret).image
            else:
                pixels = np.asarray(cover) + codec.residual(cover, secret, rounds=0)
                marked = Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
            marked.save(path.with_suffix(".part"), "PNG", compress_level=1)
            path.with_suffix(".part").replace(path)
        return Image.open(path).convert("RGB")

    # --- what an attacker has seen --------------------------------------------------------------------------

    def seen(self, count: int) -> Iterator[Image.Image]:
        """Unmarked pictures of the tune part that are no victims; windows of them after the last."""
        victims = set(self.paths("tune"))
        listed = [path for folder in self.folders for path in files(folder, "tune") if path not in victims]
        whole = [listed[i] for i in np.random.default_rng([SEED, 3]).permutation(len(listed))]
        for number in range(count):
            image = opened(whole[number % len(whole)])
            if number >= len(whole):
                rng = np.random.default_rng([SEED, 4, number])
                side = int(rng.uniform(0.5, 0.8) * min(image.size))
                x, y = (int(rng.integers(length - side + 1)) for length in image.size)
                image = image.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            yield image

    def pool_secrets(self, kind: str, count: int) -> Bits:
        if kind == ONE:
            return np.repeat(self.secrets(5, 1), count, axis=0)
        return self.secrets(6, count)

    def pool_images(self, kind: str, count: int) -> Iterator[Image.Image]:
        """Marked pictures that the attacker has seen: of ONE secret, FRESH ones, or fresh ones under MANY keys."""
        own = np.random.default_rng([SEED, 8]).integers(SETS, size=1 << 16)
        pairs = zip(self.seen(count), self.pool_secrets(kind, count), strict=True)
        for number, (cover, secret) in enumerate(tqdm(pairs, f"pool, {kind}", count, disable=None)):
            codec = self.sets[own[number]] if kind == MANY else self.private
            yield self.kept(codec, cover, secret, f"pool-{number:04d}", fitted=False)

    def pool(self, kind: str, count: int) -> Features:
        """Features of the first pictures that were seen, (N, D)."""
        rows = self._features.setdefault(kind, [])
        if len(rows) < count:
            rows += [
                spectra.features(image) for image in islice(self.pool_images(kind, count), len(rows), None)
            ]
        return np.stack(rows[:count])

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, codec: PixelCodec, images: measuring.Images, secrets: Bits) -> Row:
        """What the detector, search and all, makes of pictures."""
        detector = self.detectors[codec.key.id]
        return measuring.figures(
            [detector.detect(i, s) for i, s in zip(images, secrets, strict=True)], secrets
        )

    def removal(
        self,
        attack: Attack,
        *,
        public: bool = False,
        one_secret: bool = False,
        strengths: Sequence[float] = (0.0,),
        finish: Finish | None = None,
    ) -> Row:
        """An attack on victims, its strength chosen on others; `finish` comes last and is no damage."""
        codec = self.public if public else self.private

        def made(part: str, strength: float) -> tuple[Row, list[Victim], list[Image.Image]]:
            victims = self.victims(part, public, one_secret)
            images = [attack(victim, strength) for victim in victims]
            arrived = [finish(image) for image in images] if finish else images
            row = self.read(codec, arrived, np.stack([victim.secret for victim in victims]))
            return row, victims, images

        def tried(strength: float) -> tuple[float, float]:
            row, victims, images = made("tune", strength)
            references = zip(*((victim.marked, victim.cover) for victim in victims), strict=True)
            return row["found"]["rate"], measuring.left(images, *references)

        chosen = measuring.least_removing(strengths, tried)
        row, victims, images = made("test", chosen)
        row |= measuring.quality([victim.marked for victim in victims], images)
        return row | ({"strength": chosen} if len(strengths) > 1 else {})

    def forgery(self, mark: Callable[[int, str], Features], secret: Callable[[int], Bits]) -> Row:
        """A mark, from features, put on covers that never had it."""

        def made(part: str, strength: float) -> tuple[Row, list[Image.Image], list[Image.Image]]:
            covers = self.covers(part)
            images = [spectra.shifted(cover, mark(i, part), strength) for i, cover in enumerate(covers)]
            secrets = np.stack([secret(i) for i in range(len(covers))])
            return self.read(self.private, images, secrets), covers, images

        def tried(strength: float) -> tuple[float, float]:
            row, covers, images = made("tune", strength)
            return row["found"]["rate"], measuring.left(images, covers)

        chosen = measuring.most_found(STRENGTHS, tried)
        row, covers, images = made("test", chosen)
        return row | measuring.quality(covers, images) | {"strength": chosen}


def opened(path: Path) -> Image.Image:
    return ImageOps.contain(Image.open(path).convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
