"""Figures of a family's codec on photographs that no training opened, through 8-bit images.

embedded          photographs marked with our own small autoencoder, PSNR against the photograph
same_seed         D(z + delta) of the teacher's autoencoder against D(z), as a pipeline of the family makes them
..._curve         the same over strengths, on a third of the pictures
generated_sizes   the same at other sizes
fast              the embedded ones again, read with the codec's pixel decoder if it has one
negatives         unmarked crops

Pictures and readings are kept in a memory: a measurement that was stopped goes on, and one of more pictures takes
over those that there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from tqdm import tqdm

from diffmark import vae
from diffmark.attacks import distortion, everyday
from diffmark.calibration import Calibration, evidence
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.evaluation.memory import Memory
from diffmark.evaluation.metrics import psnr
from diffmark.fast import PixelDecoder
from diffmark.provenance import weights_digest
from diffmark.training.family_negatives import (
    describe_blind,
    describe_payloads,
    describe_unmarked,
    unmarked_pictures,
)
from diffmark.training.family_pictures import Accounts, Marker, Reader, as_image, as_pixels
from diffmark.training.measurement import blind_rate, rounded
from diffmark.training.photographs import centre_square

STRENGTHS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83)
SAME_SEED_STRENGTHS = (0.42, 0.65, 1.0, 1.41)
ACCURACY = 0.98  # of the bits, that the suggested strength gives ...
VERIFIED = 0.95  # ... and of the payloads
UNSEEN = 40.0  # dB: a mark that nobody sees may be stronger than it must be, for what happens to the picture
SIZES = (
    (256, 256),
    (384, 640),
    (512, 512),
    (768, 512),
    (1024, 1024),
    (1080, 1920),
    (2048, 2048),
)  # height, width
LARGE = 1024 * 1024  # generated pictures of more pixels take minutes each: a quarter as many are made
GENERATED_SIZES = ((256, 256), (384, 640), (512, 512), (768, 512), (1024, 1024), (2048, 2048))

Change = Callable[[Image.Image, np.random.Generator], Image.Image]

ATTACKS: dict[str, Change] = {
    "none": lambda image, rng: image,
    "jpeg_90": lambda image, rng: distortion.jpeg(image, 90, rng),
    "jpeg_50": lambda image, rng: distortion.jpeg(image, 50, rng),
    "webp_50": lambda image, rng: everyday.webp(image, 50, rng),
    "resize_0.5": lambda image, rng: everyday.resize(image, 0.5, rng),
    "resize_0.75": lambda image, rng: everyday.resize(image, 0.75, rng),
    "resize_2": lambda image, rng: everyday.resize(image, 2.0, rng),
    "blur_1": lambda image, rng: distortion.blur(image, 1, rng),
    "blur_2": lambda image, rng: distortion.blur(image, 2, rng),
    "noise_0.03": lambda image, rng: distortion.noise(image, 0.03, rng),
    "noise_0.05": lambda image, rng: distortion.noise(image, 0.05, rng),
    "brightness_1.5": lambda image, rng: distortion.brightness(image, 1.5, rng),
    "contrast_1.5": lambda image, rng: distortion.contrast(image, 1.5, rng),
    "erasing_0.1": lambda image, rng: distortion.erasing(image, 0.1, rng),
    "rotation_2": lambda image, rng: distortion.rotation(image, 2, rng),
    "rotation_9": lambda image, rng: distortion.rotation(image, 9, rng),
    "resized_crop_0.97": lambda image, rng: distortion.resized_crop(image, 0.97, rng),
    "resized_crop_0.9": lambda image, rng: distortion.resized_crop(image, 0.9, rng),
}
SAME_SEED_ATTACKS = ("jpeg_50", "resize_0.5", "resize_2")
FAST_ATTACKS = ("none", "jpeg_50", "resize_0.5", "blur_2", "noise_0.05", "contrast_1.5")


@torch.no_grad()
def measure_family(
    codec: Codec,
    own: nn.Module,
    teacher: nn.Module | None,
    paths: Sequence[Path],
    marked: int,
    same_seed: int,
    negatives: int,
    memory: Memory,
    seed: int = 0,
    generated: int | None = None,
    pixel_decoder: PixelDecoder | None = None,
) -> tuple[dict[str, Any], Codec]:
    """All figures, and the codec with its calibration; `paths` are pictures that were never trained on.

    Of `marked` pictures `same_seed` go through the teacher, and `generated` of these at other sizes: a
    quarter by default.
    """
    generated = max(same_seed // 4, 1) if generated is None else generated
    if teacher is not None and same_seed:
        _check_counts(min(marked, len(paths)), same_seed, generated)
    for autoencoder in (own, teacher):
        if autoencoder is not None:
            autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rng = np.random.default_rng(seed)
    accounts = Accounts(len(paths), codec.config.length, rng)
    order = rng.permutation(len(paths))  # the folders hold different kinds of pictures
    chosen = [paths[i] for i in order]
    marker = Marker(codec, own, teacher, accounts, memory)
    reader = Reader(Detector(codec, own), accounts, memory)
    size = codec.config.image_size[0]
    photographs = [Image.fromarray(centre_square(path, size)) for path in chosen[:marked]]
    found: dict[str, Any] = {"held_out": len(paths), "payload_bits": [20, 13, 12]}
    found["embedded_curve"] = _embedded_curve(marker, reader, _third(photographs))
    strength = found["strength"] = suggested_strength(found["embedded_curve"])
    codec.config = replace(codec.config, embed_strength=strength)
    images = marker.embedded(photographs, strength)
    found["embedded"] = {"strength": strength, **_ratios(images, photographs), **reader.figures(images)}
    found["attacks"] = {
        name: reader.figures(_changed(name, images, seed))
        for name in tqdm(ATTACKS, desc="attacks", disable=None)
    }
    found["sizes"] = _sizes(marker, reader, photographs[: max(marked // 8, 2)], strength)
    readers = {"own": reader}
    if pixel_decoder is not None:
        fast = Reader(Detector(codec, None, pixel_decoder=pixel_decoder), accounts, memory)
        readers["fast"] = fast
        found["fast"] = {name: fast.figures(_changed(name, images, seed)) for name in FAST_ATTACKS}
    if teacher is not None and same_seed:
        readers = {"teacher": Reader(Detector(codec, teacher), accounts, memory), **readers}
        found["autoencoder"] = compare(own, teacher, photographs[:same_seed])
        found["same_seed_curve"] = _same_seed_curve(marker, readers, _third(photographs[:same_seed]))
        found["same_seed"] = _same_seed(marker, readers, photographs[:same_seed], seed)
        found["generated_sizes"] = _generated_sizes(marker, readers, photographs[:generated])
    unmarked = unmarked_pictures(reader, own, chosen, negatives, seed)
    kind = codec.config.evidence
    found["negatives"] = {
        **describe_unmarked(unmarked.margins, seed),
        "sharp": describe_unmarked(unmarked.margins[unmarked.sharp], seed),
        "payload_verified": describe_payloads(unmarked, accounts),
        "blind_at_1e-3": describe_blind(unmarked, kind),
    }
    codec.calibration = Calibration.measure(
        evidence(unmarked.margins, kind),
        {"images": "unseen photographs and crops of them"},
        weights_digest(own, half=True),
        kind,
    )
    scores = evidence(reader.margins(images), kind).tolist()
    found["blind_at_1e-3"] = blind_rate(codec.calibration, scores)
    return found, codec


def _check_counts(marked: int, same_seed: int, generated: int) -> None:
    if same_seed > marked:
        raise ValueError(
            f"{same_seed} pictures through the teacher are more than the {marked} that are marked"
        )
    if generated > same_seed:
        raise ValueError(f"{generated} generated pictures are more than the {same_seed} through the teacher")


def _third(photographs: list[Image.Image]) -> list[Image.Image]:
    return photographs[: max(len(photographs) // 3, 1)]


def _embedded_curve(marker: Marker, reader: Reader, photographs: list[Image.Image]) -> list[dict[str, Any]]:
    """Accuracy and PSNR over strengths."""
    curve = []
    for strength in tqdm(STRENGTHS, desc="embedding", disable=None):
        images = marker.embedded(photographs, strength)
        curve.append({"strength": strength, **_ratios(images, photographs), **reader.figures(images)})
    return curve


def suggested_strength(curve: Sequence[dict[str, Any]]) -> float:
    """The least strength from 1 on that gives enough of bits and payloads, or a greater one that is not seen."""
    enough = [
        row["strength"]
        for row in curve
        if row["strength"] >= 1
        and row["bit_accuracy"] >= ACCURACY
        and row["payload_verified"]["rate"] >= VERIFIED
    ]
    least = min(enough, default=max(row["strength"] for row in curve))
    return max([least, *(row["strength"] for row in curve if row["psnr"] >= UNSEEN)])


def _changed(name: str, images: list[Image.Image], seed: int) -> list[Image.Image]:
    return [ATTACKS[name](image, np.random.default_rng([seed, i])) for i, image in enumerate(images)]


def _sizes(marker: Marker, reader: Reader, photographs: list[Image.Image], strength: float) -> dict[str, Any]:
    """Photographs stretched to other sizes and aspects before they are marked."""
    found = {}
    for size in tqdm(SIZES, desc="sizes", disable=None):
        plain = _resized(photographs, size)
        images = marker.embedded(plain, strength)
        found[_named(size)] = {**_ratios(images, plain), **reader.figures(images)}
    return found


def _same_seed(
    marker: Marker,
    readers: dict[str, Reader],
    photographs: list[Image.Image],
    seed: int,
) -> dict[str, Any]:
    """D(z + delta) against D(z) with the teacher, read with the teacher's encoder and with our own."""
    plain, images = (
        marker.generated(photographs, strength)
        for strength in tqdm((0.0, 1.0), desc="same seed", disable=None)
    )
    attacks = {name: _read_by(readers, _changed(name, images, seed)) for name in SAME_SEED_ATTACKS}
    return {"strength": 1.0, **_ratios(images, plain), **_read_by(readers, images), "attacks": attacks}


def _same_seed_curve(
    marker: Marker, readers: dict[str, Reader], photographs: list[Image.Image]
) -> list[dict[str, Any]]:
    """The same over strengths."""
    plain, curve = marker.generated(photographs, 0.0), []
    for strength in tqdm(SAME_SEED_STRENGTHS, desc="same seed, strengths", disable=None):
        images = marker.generated(photographs, strength)
        curve.append({"strength": strength, **_ratios(images, plain), **_read_by(readers, images)})
    return curve


def _generated_sizes(
    marker: Marker, readers: dict[str, Reader], photographs: list[Image.Image]
) -> dict[str, Any]:
    """D(z + delta) against D(z) with the teacher at other sizes."""
    found = {}
    for size in tqdm(GENERATED_SIZES, desc="generated sizes", disable=None):
        few = len(photographs) if math.prod(size) <= LARGE else max(len(photographs) // 4, 1)
        stretched = _resized(photographs[:few], size)
        plain, images = (marker.generated(stretched, strength) for strength in (0.0, 1.0))
        found[_named(size)] = {**_ratios(images, plain), **_read_by(readers, images)}
    return found


def _resized(photographs: list[Image.Image], size: tuple[int, int]) -> list[Image.Image]:
    height, width = size
    return [image.resize((width, height), Image.Resampling.LANCZOS) for image in photographs]


def _named(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _read_by(readers: dict[str, Reader], images: list[Image.Image]) -> dict[str, Any]:
    return {f"read_by_{name}": reader.figures(images) for name, reader in readers.items()}


@torch.no_grad()
def compare(own: nn.Module, teacher: nn.Module, photographs: list[Image.Image]) -> dict[str, float]:
    """How near our autoencoder is to the teacher's: correlation of latents, PSNR of and between round trips."""
    correlations, ours, theirs, between = [], [], [], []
    for image in photographs:
        pixels = as_pixels(image)
        z, w = vae.encode(own, pixels), vae.encode(teacher, pixels)
        correlations.append(float(torch.corrcoef(torch.stack([z.flatten(), w.flatten()]))[0, 1]))
        by_ours, by_theirs = as_image(vae.decode(own, z)), as_image(vae.decode(teacher, w))
        ours.append(psnr(by_ours, image))
        theirs.append(psnr(by_theirs, image))
        between.append(psnr(by_ours, by_theirs))
    return {
        "latent_correlation": rounded(np.mean(correlations)),
        "round_trip_psnr": rounded(np.mean(ours)),
        "teachers_round_trip_psnr": rounded(np.mean(theirs)),
        "psnr_between": rounded(np.mean(between)),
    }


def _ratios(images: Sequence[Image.Image], plain: Sequence[Image.Image]) -> dict[str, float]:
    ratios = [psnr(a, b) for a, b in zip(images, plain, strict=True)]
    return {"psnr": rounded(np.mean(ratios)), "psnr_min": rounded(min(ratios))}
