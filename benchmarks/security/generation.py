"""A codec of the generation layer under attack. Its networks are public; the operator's key hides the bits alone.

Attackers have the autoencoder and have seen marked pictures, or have the codec's networks as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
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
from diffmark.evaluation.visibility import ssimulacra2
from diffmark.images import read_image
from diffmark.latent.codec import Codec
from diffmark.latent.vae import decode, encode
from diffmark.mark.generation import ImageSpec, Sampling, generate
from diffmark.mark.image import embed
from diffmark.mark.loading import default_guidance, load_pipeline
from diffmark.secret import Bits, to_hex
from diffmark.statistics import auc
from diffmark.vista.scenes import caption, random_scene
from security import measuring
from security.collusion import COLLUDERS, mixture
from security.measuring import Row, Tasks, share
from security.privacy import pairs
from security.seen import OF_FRESH, OF_ONE
from security.spectra import fitted, principal

SEED = 24
FIRST = {"test": 1_000_001, "tune": 2_000_001, "seen": 3_000_001}  # seeds of scenes and noise
ONE, FRESH, NONE = "one secret", "fresh secrets", "no mark"
STRENGTHS = (0.5, 1.0, 2.0, 3.0)  # multiples of the mark's own size
OVERDONE = (0.5, 1.0, 1.5, 2.0)  # of the mark's own dose
EPSILONS = (2.0, 4.0, 8.0)  # levels of 255
STEPS_PGD = 20
SLACK = 10.0  # of SSIMULACRA2, worse than the mark itself
RIDGE = 0.1  # of the mean energy of a picture
LINKED = 200  # pictures of each kind that are told apart, in pairs
UNMARKED = 300  # pictures without a mark, which who has the model can make

Attack = Callable[[Image.Image, float], Image.Image]
Rows = NDArray[np.float32]


class Studio:
    """Pipeline, the codec under the operator's key and without one, and the pictures of one run."""

    def __init__(
        self, folder: Path, codec: str, model: str, steps: int, victims: int, tuning: int, pool: int
    ) -> None:
        torch.set_num_threads(1)
        self.folder, self.counts = folder, {"test": victims, "tune": tuning, "seen": pool}
        self._rows: dict[str, list[Rows]] = {}
        self.model, self.sampling = model, Sampling(steps, default_guidance(model))
        _, key, strangers = fixed_keys(3)
        self.codec, self.keyless, self.other = (Codec.from_pretrained(codec) for _ in range(3))
        self.codec.use_key(key)
        self.other.use_key(strangers)
        self.length = self.codec.config.length
        self.detector = Detector(self.codec, self.pipe.vae, fpr=measuring.FPR)

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

    @cache  # noqa: B019 - one studio a process
    def made(self, part: str, kind: str, count: int | None = None) -> list[Image.Image]:
        """The first pictures of a part, each with its own secret, all with one, or unmarked."""
        secrets = self.of(part, kind)[:count]
        return [
            self.picture(part, i, None if kind == NONE else secret)
            for i, secret in enumerate(tqdm(secrets, f"{part}, {kind}", disable=None))
        ]

    def picture(self, part: str, number: int, secret: Bits | None) -> Image.Image:
        word = "plain" if secret is None else to_hex(secret)
        path = self.folder / "made" / f"{part}-{number:04d}-{word}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            seed = FIRST[part] + number
            bits = np.zeros(self.length, np.uint8) if secret is None else secret
            spec = ImageSpec(caption(random_scene(seed)), bits, seed)
            sampling = replace(self.sampling, strength=0.0 if secret is None else 1.0)
            image = generate(self.pipe, self.codec, spec, sampling)
            image.save(path.with_suffix(".part"), "PNG", compress_level=1)
            path.with_suffix(".part").replace(path)
        return Image.open(path).convert("RGB")

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
    def unmarked_mean(self) -> Rows:
        """Of pictures of the prompts that were seen, made without a mark."""
        return self.rows(NONE, min(UNMARKED, self.counts["seen"])).mean(axis=0)

    @torch.no_grad()
    def shifted(self, image: Image.Image, change: Rows, strength: float) -> Image.Image:
        """The image with what a change of its latents, as large as a mark times `strength`, does to it."""
        z = self.latents(image)
        size = float(self.keyless.delta(self.secrets(9, 1)).norm()) * float(self.codec.injection.dose)
        wanted = torch.from_numpy(change.astype(np.float32)).view_as(z)
        wanted = wanted * (strength * size / max(float(wanted.norm()), 1e-9))
        difference = decode(self.detector.vae, z + wanted) - decode(self.detector.vae, z)
        pixels = np.asarray(image, np.float32) + 127.5 * difference[0].permute(1, 2, 0).numpy()
        return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))

    @cached_property
    def least(self) -> float:
        """The quality that an attack has to leave: as much as elsewhere, or what the codec's own mark leaves."""
        own = measuring.left(self.made("tune", FRESH), self.made("tune", NONE), metric=ssimulacra2)
        return min(measuring.LEAST_QUALITY, own - SLACK)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, images: measuring.Images, secrets: Bits) -> Row:
        found = [self.detector.detect(image, secret) for image, secret in zip(images, secrets, strict=True)]
        return measuring.figures(found, secrets)

    def removal(self, attack: Attack, strengths: Sequence[float] = (0.0,), kind: str = FRESH) -> Row:
        def tried(strength: float) -> tuple[float, float]:
            before = self.made("tune", kind)
            after = [attack(image, strength) for image in before]
            row = self.read(after, self.of("tune", kind))
            covers = self.made("tune", NONE)
            return row["found"]["rate"], measuring.left(after, before, covers, metric=ssimulacra2)

        chosen = measuring.least_removing(strengths, tried, self.least)
        before = self.made("test", kind)
        after = [attack(image, chosen) for image in before]
        row = self.read(after, self.of("test", kind))
        row |= measuring.quality(before, after, self.made("test", NONE))
        return row | ({"strength": chosen} if len(strengths) > 1 else {})

    def forgery(self, mark: Callable[[int, str], Rows], secrets: Callable[[str], Bits]) -> Row:
        """A change of latents put on unmarked pictures of other prompts."""

        def made(part: str, strength: float) -> tuple[Row, list[Image.Image], list[Image.Image]]:
            covers = self.made(part, NONE)[::-1]
            after = [self.shifted(cover, mark(i, part), strength) for i, cover in enumerate(covers)]
            return self.read(after, secrets(part)), covers, after

        def tried(strength: float) -> tuple[float, float]:
            row, before, after = made("tune", strength)
            return row["found"]["rate"], measuring.left(after, before, metric=ssimulacra2)

        chosen = measuring.most_found(STRENGTHS, tried, self.least)
        row, before, after = made("test", chosen)
        return row | measuring.quality(before, after) | {"strength": chosen}


# --- the rows ----------------------------------------------------------------------------------------------


def tasks(studio: Studio) -> Tasks:
    yield "none", lambda: studio.removal(lambda image, _: image)
    yield "complement written with the codec", lambda: studio.removal(partial(_complement, studio), OVERDONE)
    yield "overwritten with the codec", lambda: studio.removal(partial(_overwritten, studio))
    yield "gradient on the margins with the codec", lambda: studio.removal(partial(_pgd, studio), EPSILONS)
    yield "forgery: read and written again with the codec, without the key", lambda: _rewritten(studio)
    yield "forgery: fine latents copied from one picture", lambda: _copied(studio)
    yield "privacy: the word, without the operator's key", lambda: _other_key(studio)
    yield "privacy: two pictures", lambda: _linked(studio)
    for count in COLLUDERS:
        for fresh in (False, True):
            kind = "fresh secrets" if fresh else "one secret an account"
            yield f"collusion of {count}, {kind}", partial(_collusion, studio, count, fresh)
    for count in sorted({*OF_ONE, *OF_FRESH}):
        if count > studio.counts["seen"]:
            continue
        if count in OF_ONE:
            yield f"mean latents of {count}, {ONE}", partial(_mean, studio, count, ONE)
            yield f"forgery: mean latents of {count}, {ONE}", partial(_forged, studio, count)
        if count in OF_FRESH:
            yield f"mean latents of {count}, {FRESH}", partial(_mean, studio, count, FRESH)
            yield f"principal directions of {count}, {FRESH}", partial(_principal, studio, count)
            yield f"surrogate fitted to {count}, {FRESH}", partial(_surrogate, studio, count)
            yield f"reader fitted to {count}, {FRESH}", partial(_fitted, studio, count)


def _complement(studio: Studio, image: Image.Image, strength: float) -> Image.Image:
    """The carried word is read without the key, and its complement written, as strongly as the mark or more."""
    reader = Detector(studio.keyless, studio.detector.vae)
    word = 1 - reader.detect(image).bits
    return embed(image, studio.keyless, studio.detector.vae, word, strength * studio.codec.injection.dose)


def _overwritten(studio: Studio, image: Image.Image, _: float) -> Image.Image:
    """Another secret by the public codec, added to the finished picture."""
    dose = studio.codec.injection.dose
    return embed(image, studio.keyless, studio.detector.vae, studio.secrets(9, 1)[0], dose)


def _pgd(studio: Studio, image: Image.Image, epsilon: float) -> Image.Image:
    """Projected gradient descent on the network's margins, through the autoencoder; L-inf, in levels of 255."""
    vae, start = studio.detector.vae, studio.pixels(image)
    bound, step = epsilon / 127.5, 2.5 * epsilon / 127.5 / STEPS_PGD

    def margins(pixels: Tensor) -> Tensor:
        logits = studio.keyless.decoder(encode(vae, pixels))
        return logits[..., 1] - logits[..., 0]

    with torch.no_grad():
        signs = margins(start).sign()
    pixels = start.clone()
    for _ in range(STEPS_PGD):
        pixels.requires_grad_(True)
        (gradient,) = torch.autograd.grad((margins(pixels) * signs).clamp_min(-1).sum(), pixels)
        with torch.no_grad():
            pixels = (start + (pixels - step * gradient.sign() - start).clamp(-bound, bound)).clamp(-1, 1)
    levels = (pixels.detach()[0].permute(1, 2, 0).numpy() + 1) * 127.5
    return Image.fromarray(levels.round().astype(np.uint8))


def _rewritten(studio: Studio) -> Row:
    """A stranger reads the word that a picture carries and writes it into another, both with the public codec."""
    reader, dose = Detector(studio.keyless, studio.detector.vae), studio.codec.injection.dose
    covers = studio.made("test", NONE)[::-1]
    words = [reader.detect(image).bits for image in studio.made("test", FRESH)]
    forged = [
        embed(cover, studio.keyless, reader.vae, word, dose)
        for cover, word in zip(covers, words, strict=True)
    ]
    return studio.read(forged, studio.of("test", FRESH)) | measuring.quality(covers, forged)


def _copied(studio: Studio) -> Row:
    """Latents less their local mean, of one marked picture, added to another's."""

    def mark(number: int, part: str) -> Rows:
        z = studio.latents(studio.made(part, FRESH)[number])
        smooth = torch.nn.functional.avg_pool2d(z, 5, 1, 2, count_include_pad=False)
        return (z - smooth).flatten().numpy()

    return studio.forgery(mark, lambda part: studio.of(part, FRESH)) | {"seen": 1}


def _mean(studio: Studio, count: int, kind: str) -> Row:
    """Mean latents of marked pictures less those of unmarked ones, which who has the model can make at will."""
    mark = _estimate(studio, count, kind)
    row = studio.removal(lambda image, s: studio.shifted(image, -mark, s), STRENGTHS, kind)
    return row | {"seen": count}


def _estimate(studio: Studio, count: int, kind: str) -> Rows:
    return studio.rows(kind, count).mean(axis=0) - studio.unmarked_mean


def _forged(studio: Studio, count: int) -> Row:
    mark = _estimate(studio, count, ONE)
    return studio.forgery(lambda number, part: mark, lambda part: studio.of(part, ONE)) | {"seen": count}


def _principal(studio: Studio, count: int) -> Row:
    rows = studio.rows(FRESH, count) - studio.unmarked_mean
    directions = principal(rows, studio.length)
    return studio.removal(_without(studio, directions), STRENGTHS) | {"seen": count}


def _fitted(studio: Studio, count: int) -> Row:
    """The secrets of what he has seen are known to him: the key's permutation does not matter then.

    Bits are read by ridge regression, and what each bit adds to the latents, on average, is taken out.
    """
    rows = studio.rows(FRESH, count) - studio.unmarked_mean
    signs = 2.0 * studio.of("seen", FRESH)[:count].astype(np.float32) - 1
    patterns, readers = fitted(rows, studio.of("seen", FRESH)[:count]), ridge(rows, signs)

    def bits(image: Image.Image) -> Rows:
        return readers @ (studio.latents(image).flatten().numpy() - studio.unmarked_mean) > 0

    read = np.stack([bits(image) for image in studio.made("test", FRESH)])
    right = float(np.mean(read == studio.of("test", FRESH)))

    def attack(image: Image.Image, strength: float) -> Image.Image:
        return studio.shifted(image, -((2.0 * bits(image) - 1) @ patterns), strength)

    return studio.removal(attack, STRENGTHS) | {"seen": count, "bits_read_without_key": round(right, 4)}


def ridge(rows: Rows, targets: Rows) -> Rows:
    """Linear readers (K, D) of targets (N, K), by ridge regression."""
    gram = (rows @ rows.T).astype(np.float64)
    gram += gram.diagonal().mean() * RIDGE * np.eye(len(gram))
    return (np.linalg.solve(gram, targets).T.astype(np.float32) @ rows).astype(np.float32)


def _without(studio: Studio, directions: Rows) -> Attack:
    def attack(image: Image.Image, strength: float) -> Image.Image:
        z = studio.latents(image).flatten().numpy() - studio.unmarked_mean
        return studio.shifted(image, -(directions @ z) @ directions, strength)

    return attack


def _surrogate(studio: Studio, count: int) -> Row:
    """A linear decoder of "marked" by ridge regression; its direction is taken out of each victim."""
    marked, plain = studio.rows(FRESH, count), studio.rows(NONE, min(count, UNMARKED))
    targets = np.repeat([[1.0], [-1.0]], [len(marked), len(plain)], axis=0)
    (direction,) = ridge(np.concatenate([marked, plain]) - studio.unmarked_mean, targets)
    row = studio.removal(lambda image, s: studio.shifted(image, -direction, s), STRENGTHS)
    return row | {"seen": count}


def _collusion(studio: Studio, count: int, fresh: bool) -> Row:
    """Copies of one picture that accounts got: the same prompt and seed, a secret each."""
    held = []
    for account in range(count):
        secrets = studio.secrets(20 + account, studio.counts["test"])
        if not fresh:
            secrets = np.repeat(secrets[:1], len(secrets), axis=0)
        copies = [studio.picture("test", i, secret) for i, secret in enumerate(secrets)]
        held.append(([np.asarray(image, np.float32) for image in copies], secrets))
    return mixture(held, lambda image: studio.detector.detect(image).margins, fresh)


def _other_key(studio: Studio) -> Row:
    """What somebody with the codec and another key, or none, reads against the secrets."""
    images, secrets = studio.made("test", FRESH), studio.of("test", FRESH)
    stranger = Detector(studio.keyless, studio.detector.vae, fpr=measuring.FPR)
    read = [stranger.detect(image) for image in images]
    row: Row = {
        "images": len(images),
        "bits_read_right_without_a_key": share((np.stack([one.bits for one in read]) == secrets).ravel()),
    }
    if studio.codec.calibration is not None:  # without it nobody can say so
        row["seen_to_be_marked_at_all"] = share(one.marked for one in read)
    bits = np.stack([Detector(studio.other, stranger.vae).detect(image).bits for image in images])
    return row | {"bits_read_right_with_another_key": share((bits == secrets).ravel())}


def _linked(studio: Studio) -> Row:
    """Without the key: two pictures of one secret told from two of different ones, by latents and by the word."""
    count = min(LINKED, studio.counts["seen"])
    reader = Detector(studio.keyless, studio.detector.vae)
    row: Row = {"pairs": count // 2}
    latents = [pairs(studio.rows(kind, count)) for kind in (ONE, FRESH)]
    words = [
        pairs(np.stack([reader.detect(image).margins for image in studio.made("seen", kind, count)]))
        for kind in (ONE, FRESH)
    ]
    row["auc_one_secret_against_two_by_latents"] = round(auc(*latents), 4)
    return row | {"auc_one_secret_against_two_with_the_codec": round(auc(*words), 4)}
