"""Measure a codec of final injection on unseen pictures, through image files, and calibrate it.

Marked images are D(z + delta) of pictures that no training saw, written as PNG and read by the detector; PSNR is
against D(z), the same image without the mark. Half of the negatives are pictures as they are, half have been
through the autoencoder. Attacks are those of the evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark import statistics, vae
from diffmark.attacks import distortion
from diffmark.attacks.base import Distort
from diffmark.calibration import Calibration, evidence
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.images import read_image
from diffmark.provenance import provenance
from diffmark.training.chance import Chance
from diffmark.training.config import TrainingConfig
from diffmark.training.preparation import open_vae
from diffmark.training.runs import command
from diffmark.training.samples import psnr
from diffmark.training.sources import Pictures, open_pictures

BATCH = 16


def _half(image: Image.Image, value: float, rng: np.random.Generator) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


# What is done to a marked image before it is read, and its parameter. All strengths are the evaluation's business.
ATTACKS: dict[str, tuple[Distort, float]] = {
    "none": (lambda image, value, rng: image, 0),
    "jpeg_90": (distortion.jpeg, 90),
    "jpeg_50": (distortion.jpeg, 50),
    "noise_0.05": (distortion.noise, 0.05),
    "blur_1": (distortion.blur, 1),
    "blur_2": (distortion.blur, 2),
    "resize_half": (_half, 0.5),
    "brightness_1.5": (distortion.brightness, 1.5),
    "contrast_1.5": (distortion.contrast, 1.5),
    "rotation_5": (distortion.rotation, 5),
    "resized_crop_0.9": (distortion.resized_crop, 0.9),
}


@torch.no_grad()
def measure_codec(
    source: str | Path,
    config: TrainingConfig,
    marked: int,
    negatives: int,
    seed: int = 0,
    cache: Path | None = None,
    autoencoder: nn.Module | None = None,
) -> tuple[dict[str, Any], Codec]:
    """Figures of a codec in half precision, as it is published, and that codec with its calibration."""
    codec = Codec.from_pretrained(source)
    codec.half().float()  # the weights that float16 files hold; arithmetic stays in float32
    if codec.config.injection.mode != "final":
        raise ValueError(
            f"{source}: its injection mode is {codec.config.injection.mode!r}, which goes through a denoiser; "
            "only mode 'final' can be measured on pictures"
        )
    autoencoder = autoencoder or open_vae(config)
    skipped = config.log.measure_images  # they have chosen the best codec
    total = skipped + marked + negatives
    split = open_pictures(config.data.pictures, codec.config.image_size, config.data.count, total, cache)
    if split.train.count < config.data.count:
        raise ValueError(
            f"{config.data.pictures} has {split.train.count + total} pictures; {config.data.count} are trained on "
            f"(data.count) and {total} unseen ones are asked for"
        )
    unseen = split.held_out
    detector = Detector(codec, autoencoder, batch_size=BATCH)
    found = _measure_marked(codec, detector, unseen, range(skipped, skipped + marked), seed)
    margins = _margins(detector, autoencoder, unseen, range(skipped + marked, total))
    codec.calibration = Calibration.measure(evidence(margins), {"images": unseen.name.split()[0]})
    found["negatives"] = _describe_negatives(margins, codec, seed)
    found["blind_tpr_at_1e-3"] = rate(
        sum(codec.calibration.p_value(score) <= 1e-3 for score in found.pop("evidence")), marked
    )
    codec.provenance = {**codec.provenance, "measured": found}
    return found, codec


def _measure_marked(
    codec: Codec, detector: Detector, unseen: Pictures, rows: range, seed: int
) -> dict[str, Any]:
    length = codec.config.length
    matches: dict[str, list[int]] = {name: [] for name in ATTACKS}
    ratios: list[float] = []
    scores: list[float] = []
    for batch, pixels in _batches(unseen, rows, "marking"):
        secrets = Chance(seed, batch[0]).secrets(len(batch), length)
        z = vae.encode(detector.vae, pixels)
        share = float(codec.config.injection.weights([0.0])[-1])
        with_mark = _files(vae.decode(detector.vae, z + share * codec.delta(secrets)))
        without = _files(vae.decode(detector.vae, z))
        ratios += psnr(_pixels(with_mark, codec), _pixels(without, codec)).tolist()
        for name, (attack, value) in ATTACKS.items():
            rngs = (np.random.default_rng([seed, index]) for index in batch)
            attacked = [attack(image, value, rng) for image, rng in zip(with_mark, rngs, strict=True)]
            logits = detector.logits(_pixels(attacked, codec))
            matches[name] += (logits.argmax(-1) == secrets.numpy()).sum(axis=1).tolist()
            if name == "none":
                scores += evidence(logits[..., 1] - logits[..., 0]).tolist()
    return {
        "marked": len(rows),
        "psnr": {"mean": rounded(np.mean(ratios)), "min": rounded(min(ratios))},
        "attacks": {name: _describe(counts, length) for name, counts in matches.items()},
        "evidence": scores,
    }


def _describe(matches: list[int], length: int) -> dict[str, Any]:
    counts = np.asarray(matches)
    figures: dict[str, Any] = {"bit_accuracy": rounded(counts.mean() / length)}
    figures["worst_image"] = rounded(counts.min() / length)
    figures["all_bits_right"] = rate(int((counts == length).sum()), len(counts))
    for fpr in (fpr for fpr in (1e-3, 1e-6) if fpr >= 0.5**length):
        threshold = statistics.match_threshold(length, fpr)
        figures[f"tpr_at_{fpr:g}"] = rate(int((counts >= threshold).sum()), len(counts))
    return figures


def _margins(detector: Detector, autoencoder: nn.Module, unseen: Pictures, rows: range) -> np.ndarray:
    """Margins of unmarked images, (N, L): even batches as they are, odd ones through the autoencoder."""
    parts = []
    for batch, pixels in _batches(unseen, rows, "negatives"):
        if (batch[0] // BATCH) % 2:
            decoded = vae.decode(autoencoder, vae.encode(autoencoder, pixels))
            pixels = _pixels(_files(decoded), detector.codec)
        logits = detector.logits(pixels)
        parts.append(logits[..., 1] - logits[..., 0])
    return np.concatenate(parts)


def _describe_negatives(margins: np.ndarray, codec: Codec, seed: int) -> dict[str, Any]:
    length = codec.config.length
    bits = margins > 0
    secrets = Chance(seed, 0, 1).secrets(len(bits), length).numpy().astype(bool)
    matches = (bits == secrets).sum(axis=1)
    threshold = statistics.match_threshold(length, 1e-3)
    return {
        "images": len(bits),
        "bit_accuracy": rounded(matches.mean() / length),
        "false_positives_at_0.001": rate(int((matches >= threshold).sum()), len(bits)),
        "largest_bias_of_a_bit": rounded(np.abs(bits.mean(axis=0) - 0.5).max()),
    }


def write_result(path: str | Path, found: dict[str, Any], config: Any, seed: int) -> None:
    """The figures with what made them: command, config, seed, versions, git revision."""
    settings = config if isinstance(config, dict) else asdict(config)
    document = {**provenance(command(), settings), "seed": seed, "results": found}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(document, indent=2) + "\n")


def _batches(pictures: Pictures, rows: range, what: str) -> Iterator[tuple[range, Tensor]]:
    for start in tqdm(range(rows.start, rows.stop, BATCH), desc=what, disable=None):
        batch = range(start, min(start + BATCH, rows.stop))
        yield batch, torch.from_numpy(np.stack([pictures.pixels(index) for index in batch]))


def _files(pixels: Tensor) -> list[Image.Image]:
    """What a PNG file of each image holds."""
    values = ((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    return [Image.fromarray(value) for value in values]


def _pixels(images: list[Image.Image], codec: Codec) -> Tensor:
    size = codec.config.image_size
    return torch.from_numpy(np.stack([read_image(image).resized(size).pixels() for image in images]))


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its exact interval."""
    low, high = statistics.clopper_pearson(successes, trials)
    return {"rate": rounded(successes / trials), "interval_95": [rounded(low), rounded(high)], "of": trials}


def rounded(value: Any) -> float:
    return round(float(value), 4)
