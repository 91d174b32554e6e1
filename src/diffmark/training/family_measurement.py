"""Figures of a family's codec on photographs that no training opened, through 8-bit images.

embedded          photographs marked with our own small autoencoder, PSNR against the photograph
same_seed         D(z + delta) of the teacher's autoencoder against D(z), as a pipeline of the family makes them
generated_sizes   the same at other sizes, delta stretched to the latents
negatives         unmarked crops, cut out of the latents of enlarged photographs: an encoder of convolutions gives
                  the latents of a crop as the crop of latents, but for the rim; one of ten is sharp, a photograph
                  as it is or a real crop

Every secret is a payload with error correction, so bits and payloads are read from the same images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark import statistics, vae
from diffmark.attacks import distortion, everyday
from diffmark.calibration import Calibration, evidence
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.fitting import delta_at_z0
from diffmark.images import read_image
from diffmark.own_model import random_crop
from diffmark.payload import PayloadScheme
from diffmark.provenance import weights_digest
from diffmark.training.measurement import blind_rate, rate, rounded
from diffmark.training.photographs import centre_square
from diffmark.vista.training.data import to_tensor, to_uint8

STRENGTHS = (0.5, 0.71, 1.0, 1.41, 2.0, 2.83)
SAME_SEED_STRENGTHS = (0.5, 0.71, 1.0, 1.41)
ACCURACY = 0.98  # of the bits, that the suggested strength gives ...
VERIFIED = 0.95  # ... and of the payloads
SIZES = (
    (256, 256),
    (384, 640),
    (512, 512),
    (768, 512),
    (1024, 1024),
    (1080, 1920),
    (2048, 2048),
)  # height, width
GENERATED_SIZES = ((256, 256), (384, 640), (512, 512), (768, 512), (1024, 1024), (2048, 2048))
ENLARGED = 768  # pixels a side of the photographs that negatives are cut from
SECRETS = 100  # random ones that each negative is compared with
SHARP = 10  # one negative of so many is not cut from them
KEY = bytes(range(32))  # of the payloads that are measured

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


class Reader:
    """A detector, and the accounts of a set of images as payloads."""

    def __init__(self, detector: Detector, accounts: np.ndarray, scheme: PayloadScheme) -> None:
        self.detector, self.accounts, self.scheme = detector, accounts, scheme
        self.secrets = np.stack([scheme.encode(int(account), nonce=0) for account in accounts])

    def figures(self, images: Sequence[Image.Image]) -> dict[str, Any]:
        """Bits, verdicts and payloads of images that carry the first of the secrets, in their order."""
        margins = self.margins(images)
        secrets, accounts = self.secrets[: len(images)], self.accounts[: len(images)]
        matches = ((margins > 0) == secrets).sum(axis=1)
        length = secrets.shape[1]
        read = [self.scheme.decode(row).account for row in margins]  # None unless verified
        verified = sum(found == account for found, account in zip(read, accounts, strict=True))
        found: dict[str, Any] = {
            "bit_accuracy": rounded(matches.mean() / length),
            "worst_image": rounded(matches.min() / length),
            "payload_verified": rate(verified, len(images)),
        }
        for fpr in (1e-3, 1e-6):
            passed = int((matches >= statistics.match_threshold(length, fpr)).sum())
            found[f"tpr_at_{fpr:g}"] = rate(passed, len(images))
        return found

    def margins(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(B, L), read one after the other as files would be."""
        size = self.detector.codec.config.image_size
        rows = []
        for image in images:
            pixels = torch.from_numpy(read_image(image).resized(size).pixels()[None])
            logits = self.detector.logits(pixels)
            rows.append(logits[0, :, 1] - logits[0, :, 0])
        return np.stack(rows)


@torch.no_grad()
def measure_family(
    codec: Codec,
    own: nn.Module,
    teacher: nn.Module | None,
    paths: Sequence[Path],
    marked: int,
    same_seed: int,
    negatives: int,
    seed: int = 0,
    generated: int | None = None,
) -> tuple[dict[str, Any], Codec]:
    """All figures, and the codec with its calibration; `paths` are pictures that were never trained on.

    Of `marked` pictures `same_seed` go through the teacher, and `generated` of these at other sizes and attacked:
    a quarter by default.
    """
    generated = max(same_seed // 4, 1) if generated is None else generated
    if teacher is not None and same_seed:
        _check_counts(min(marked, len(paths)), same_seed, generated)
    for autoencoder in (own, teacher):
        if autoencoder is not None:
            autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    scheme = PayloadScheme(KEY, codec.config.length)
    rng = np.random.default_rng(seed)
    accounts = rng.integers(1 << scheme.account_bits, size=len(paths))
    order = rng.permutation(len(paths))  # the folders hold different kinds of pictures
    chosen = [paths[i] for i in order]
    reader = Reader(Detector(codec, own), accounts, scheme)
    size = codec.config.image_size[0]
    photographs = [Image.fromarray(centre_square(path, size)) for path in chosen[:marked]]
    found: dict[str, Any] = {"held_out": len(paths), "payload_bits": [20, 13, 12]}
    found["embedded"], images = _embedded(reader, own, photographs)
    found["strength"] = suggested_strength(found["embedded"])
    codec.config = replace(codec.config, embed_strength=found["strength"])
    found["attacks"] = _attacked(reader, images, seed)
    found["sizes"] = _sizes(reader, own, photographs[: max(marked // 4, 2)])
    if teacher is not None and same_seed:
        readers = {"teacher": Reader(Detector(codec, teacher), accounts, scheme), "own": reader}
        found["autoencoder"] = compare(own, teacher, photographs[:same_seed])
        found["same_seed"] = _same_seed(readers, teacher, photographs[:same_seed], generated, seed)
        found["generated_sizes"] = _generated_sizes(readers, teacher, photographs[:generated])
    sharp = _sharp_negatives(reader, chosen, -(-negatives // SHARP), seed)
    margins = np.concatenate([_negatives(codec, own, chosen, negatives - len(sharp), seed), sharp])
    found["negatives"] = {**_describe_negatives(margins, seed), "sharp": _describe_negatives(sharp, seed)}
    kind = codec.config.evidence
    codec.calibration = Calibration.measure(
        evidence(margins, kind),
        {"images": "unseen photographs and crops of them"},
        weights_digest(own, half=True),
        kind,
    )
    for place, rows in ((found["negatives"]["sharp"], sharp), (found, reader.margins(images))):
        place["blind_at_1e-3"] = blind_rate(codec.calibration, evidence(rows, kind).tolist())
    return found, codec


def _check_counts(marked: int, same_seed: int, generated: int) -> None:
    if same_seed > marked:
        raise ValueError(
            f"{same_seed} pictures through the teacher are more than the {marked} that are marked"
        )
    if generated > same_seed:
        raise ValueError(f"{generated} generated pictures are more than the {same_seed} through the teacher")


def _embedded(
    reader: Reader, own: nn.Module, photographs: list[Image.Image]
) -> tuple[list[Any], list[Image.Image]]:
    """Accuracy and PSNR over strengths, and the marked images of the suggested strength."""
    codec, curve = reader.detector.codec, []
    made: dict[float, list[Image.Image]] = {}
    for strength in tqdm(STRENGTHS, desc="embedding", disable=None):
        images = [
            embed(image, codec, own, reader.secrets[i], strength) for i, image in enumerate(photographs)
        ]
        curve.append({"strength": strength, **_ratios(images, photographs), **reader.figures(images)})
        made[strength] = images
    return curve, made[suggested_strength(curve)]


def suggested_strength(curve: Sequence[dict[str, Any]]) -> float:
    """The least strength that gives enough of bits and payloads, or the greatest.

    Below 1 attacks would find no reserve.
    """
    enough = [
        row["strength"]
        for row in curve
        if row["strength"] >= 1
        and row["bit_accuracy"] >= ACCURACY
        and row["payload_verified"]["rate"] >= VERIFIED
    ]
    return min(enough, default=max(row["strength"] for row in curve))


def _attacked(reader: Reader, images: list[Image.Image], seed: int) -> dict[str, Any]:
    return {
        name: reader.figures(_changed(name, images, seed))
        for name in tqdm(ATTACKS, desc="attacks", disable=None)
    }


def _changed(name: str, images: list[Image.Image], seed: int) -> list[Image.Image]:
    return [ATTACKS[name](image, np.random.default_rng([seed, i])) for i, image in enumerate(images)]


def _sizes(reader: Reader, own: nn.Module, photographs: list[Image.Image]) -> dict[str, Any]:
    """Photographs stretched to other sizes and aspects before they are marked."""
    found, codec = {}, reader.detector.codec
    for height, width in tqdm(SIZES, desc="sizes", disable=None):
        plain = [image.resize((width, height), Image.Resampling.LANCZOS) for image in photographs]
        images = [
            embed(image, codec, own, reader.secrets[i], codec.config.embed_strength)
            for i, image in enumerate(plain)
        ]
        found[f"{height}x{width}"] = {**_ratios(images, plain), **reader.figures(images)}
    return found


def _same_seed(
    readers: dict[str, Reader], teacher: nn.Module, photographs: list[Image.Image], attacked: int, seed: int
) -> list[dict[str, Any]]:
    """D(z + s delta) against D(z) with the teacher, read with the teacher's encoder and with our own."""
    codec, secrets = readers["own"].detector.codec, readers["own"].secrets
    latents = [vae.encode(teacher, _tensor(image)) for image in photographs]
    plain = [_image(vae.decode(teacher, z)) for z in latents]
    curve = []
    for strength in tqdm(SAME_SEED_STRENGTHS, desc="same seed", disable=None):
        images = [_generated(codec, teacher, z, secrets[i], strength) for i, z in enumerate(latents)]
        row = {"strength": strength, **_ratios(images, plain), **_read_by(readers, images)}
        if strength == 1:
            row["attacks"] = {
                name: _read_by(readers, _changed(name, images[:attacked], seed)) for name in SAME_SEED_ATTACKS
            }
        curve.append(row)
    return curve


def _generated_sizes(
    readers: dict[str, Reader], teacher: nn.Module, photographs: list[Image.Image]
) -> dict[str, Any]:
    """D(z + delta) against D(z) with the teacher at other sizes, delta stretched to the latents."""
    found, codec = {}, readers["own"].detector.codec
    for height, width in tqdm(GENERATED_SIZES, desc="generated sizes", disable=None):
        plain, images = [], []
        for i, image in enumerate(photographs):
            z = vae.encode(teacher, _tensor(image.resize((width, height), Image.Resampling.LANCZOS)))
            plain.append(_image(vae.decode(teacher, z)))
            images.append(_generated(codec, teacher, z, readers["own"].secrets[i], 1.0))
        found[f"{height}x{width}"] = {**_ratios(images, plain), **_read_by(readers, images)}
    return found


def _generated(
    codec: Codec, teacher: nn.Module, z: Tensor, secret: np.ndarray, strength: float
) -> Image.Image:
    """The picture of latents that carry the secret, as at the end of a pipeline."""
    return _image(vae.decode(teacher, z + strength * delta_at_z0(codec, teacher, z, secret, strength)))


def _read_by(readers: dict[str, Reader], images: list[Image.Image]) -> dict[str, Any]:
    return {f"read_by_{name}": reader.figures(images) for name, reader in readers.items()}


@torch.no_grad()
def compare(own: nn.Module, teacher: nn.Module, photographs: list[Image.Image]) -> dict[str, float]:
    """How near our autoencoder is to the teacher's: correlation of latents, PSNR of round trips."""
    correlations, ours, theirs = [], [], []
    for image in photographs:
        pixels = _tensor(image)
        z, w = vae.encode(own, pixels), vae.encode(teacher, pixels)
        correlations.append(float(torch.corrcoef(torch.stack([z.flatten(), w.flatten()]))[0, 1]))
        ours.append(psnr(_image(vae.decode(own, z)), image))
        theirs.append(psnr(_image(vae.decode(teacher, w)), image))
    return {
        "latent_correlation": rounded(np.mean(correlations)),
        "round_trip_psnr": rounded(np.mean(ours)),
        "teachers_round_trip_psnr": rounded(np.mean(theirs)),
    }


def _negatives(codec: Codec, own: nn.Module, paths: Sequence[Path], count: int, seed: int) -> np.ndarray:
    """Margins of unmarked crops, (count, L)."""
    each = -(-count // len(paths))
    height, width = codec.config.height, codec.config.width
    rows: list[Tensor] = []
    for number, path in enumerate(tqdm(paths, desc="negatives", disable=None)):
        z = vae.encode(own, to_tensor(centre_square(path, ENLARGED)[None]))[0]
        rng = np.random.default_rng([seed, number])
        tops = rng.integers(z.shape[1] - height + 1, size=each)
        lefts = rng.integers(z.shape[2] - width + 1, size=each)
        crops = [z[:, y : y + height, x : x + width] for y, x in zip(tops, lefts, strict=True)]
        logits = codec.decode(torch.stack(crops))
        rows.append(logits[..., 1] - logits[..., 0])
    return torch.cat(rows)[:count].numpy()


def _sharp_negatives(reader: Reader, paths: Sequence[Path], count: int, seed: int) -> np.ndarray:
    """Margins of unmarked photographs as they are, and of real crops of them, (count, L)."""
    each, size = -(-count // len(paths)), reader.detector.codec.config.image_size[0]
    rows = []
    for number, path in enumerate(tqdm(paths[:count], desc="sharp negatives", disable=None)):
        picture, rng = read_image(path).image, np.random.default_rng([seed, number, 1])
        crops = [random_crop(picture, rng) for _ in range(each - 1)]
        rows.append(reader.margins([Image.fromarray(centre_square(path, size)), *crops]))
    return np.concatenate(rows)[:count]


def _describe_negatives(margins: np.ndarray, seed: int) -> dict[str, Any]:
    """Of each crop against many random secrets."""
    bits = margins > 0
    length, rng = bits.shape[1], np.random.default_rng(seed)
    matches = np.stack([(bits == rng.integers(2, size=bits.shape)).sum(axis=1) for _ in range(SECRETS)])
    found: dict[str, Any] = {
        "crops": len(bits),
        "secrets_a_crop": SECRETS,
        "bit_accuracy": rounded(matches.mean() / length),
    }
    for fpr in (1e-2, 1e-3):
        passed = int((matches >= statistics.match_threshold(length, fpr)).sum())
        found[f"false_positives_at_{fpr:g}"] = rate(passed, matches.size)
    found["largest_bias_of_a_bit"] = rounded(np.abs(bits.mean(axis=0) - 0.5).max())
    return found


def _ratios(images: Sequence[Image.Image], plain: Sequence[Image.Image]) -> dict[str, float]:
    ratios = [psnr(a, b) for a, b in zip(images, plain, strict=True)]
    return {"psnr": rounded(np.mean(ratios)), "psnr_min": rounded(min(ratios))}


def _tensor(image: Image.Image) -> Tensor:
    return to_tensor(np.asarray(image)[None])


def _image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(to_uint8(pixels)[0])
