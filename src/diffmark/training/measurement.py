"""Measure a codec on unseen pictures or prompts, through image files, and calibrate it.

A codec of injection mode final is measured on pictures that no training saw, D(z + delta), with PSNR against D(z);
any other on images that the run file's pipeline generates for unseen prompts, with PSNR against the same seed
without a mark. Marked images are read as PNG files hold them. Half of the negatives are pictures as they are, half
have been through the autoencoder. Attacks are those of the evaluation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from diffmark import statistics
from diffmark.attacks import distortion
from diffmark.attacks.base import Distort
from diffmark.detection.latent import Detector
from diffmark.latent import vae
from diffmark.latent.calibration import Calibration, evidence
from diffmark.latent.codec import Codec
from diffmark.latent.pictures import psnr, to_images, to_pixels
from diffmark.latent.vae import check_family
from diffmark.provenance import command_line, provenance, weights_digest
from diffmark.training.config import TrainingConfig
from diffmark.training.draws import Draws
from diffmark.training.pairs import BATCH, Pairs, batches, pairs_of_pictures, pairs_of_prompts
from diffmark.training.paths import freeze
from diffmark.training.preparation import open_vae
from diffmark.training.sources import Pictures, open_pictures


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
    prompts: list[str] | None = None,
    injection: str | None = None,
) -> tuple[dict[str, Any], Codec]:
    """Figures of a codec in half precision, as it is published, and that codec with its calibration.

    `injection` names another mode than the codec's own, to be measured with the dose that the codec has for it.
    """
    codec = Codec.from_pretrained(source)
    if injection:
        codec.dosing = replace(codec.dosing, injection=codec.dosing.in_mode(injection))
    codec.half().float()  # the weights that float16 files hold; arithmetic stays in float32
    skipped = config.log.measure_images  # they have chosen the best codec
    total = skipped + marked + negatives
    split = open_pictures(config.data.pictures, codec.config.image_size, config.data.count, total, cache)
    if split.train.count < config.data.count:
        raise ValueError(
            f"{config.data.pictures} has {split.train.count + total} pictures; {config.data.count} are trained on "
            f"(data.count) and {total} unseen ones are asked for"
        )
    unseen, rows = split.held_out, range(skipped, skipped + marked)
    if codec.injection.mode == "final":
        autoencoder = autoencoder or open_vae(config)
        pairs = pairs_of_pictures(codec, autoencoder, unseen, rows, seed)
    else:
        pipe = _open_pipeline(config, codec, source)
        autoencoder = autoencoder or pipe.vae
        asked = prompts or ([unseen.caption(i) for i in rows] if unseen.caption else [])
        if len(asked) < marked:
            raise ValueError(
                f"{marked} marked images need as many prompts that were not trained on, got {len(asked)}"
            )
        paths = config.paths
        pairs = pairs_of_prompts(codec, pipe, asked[:marked], paths.ddim_steps or 50, paths.guidance, seed)
    detector = Detector(codec, autoencoder, batch_size=BATCH)
    found: dict[str, Any] = {"injection": asdict(codec.injection)}
    margins = _margins(detector, autoencoder, unseen, range(skipped + marked, total))
    codec.calibration = Calibration.of_margins(
        margins, {"images": unseen.name.split()[0]}, weights_digest(autoencoder, half=True)
    )
    found |= _measure_marked(codec, detector, pairs, marked, seed)
    found["negatives"] = _describe_negatives(codec.calibration.whitened(margins), codec, seed)
    found["blind_tpr_at_1e-3"] = blind_rate(codec.calibration, found.pop("evidence"))
    codec.provenance = {**codec.provenance, "measured": found}
    return found, codec


def blind_rate(calibration: Calibration, scores: Sequence[float]) -> dict[str, Any] | None:
    """Share of marked images found without a secret at FPR 1e-3; None where too few unmarked ones were seen."""
    if calibration.p_value(math.inf) > 1e-3:
        return None
    return rate(sum(calibration.p_value(score) <= 1e-3 for score in scores), len(scores))


def _open_pipeline(config: TrainingConfig, codec: Codec, source: str | Path) -> Any:
    from diffmark.mark.loading import load_pipeline

    if not config.model.pipeline:
        raise ValueError(
            f"{source}: its injection mode is {codec.injection.mode!r}, which goes through a denoiser; "
            "give model.pipeline in the run file"
        )
    pipe = load_pipeline(config.model.pipeline)
    freeze(pipe.unet)
    check_family(codec.config, pipe.vae)
    return pipe


def _measure_marked(codec: Codec, detector: Detector, pairs: Pairs, count: int, seed: int) -> dict[str, Any]:
    length = codec.config.length
    matches: dict[str, list[int]] = {name: [] for name in ATTACKS}
    ratios: list[float] = []
    scores: list[float] = []
    for secrets, with_mark, without in pairs:
        first = len(ratios)
        ratios += psnr(
            *(to_pixels(images, codec.config.image_size) for images in (with_mark, without))
        ).tolist()
        for name, (attack, value) in ATTACKS.items():
            rngs = (np.random.default_rng([seed, first + i]) for i in range(len(with_mark)))
            attacked = [attack(image, value, rng) for image, rng in zip(with_mark, rngs, strict=True)]
            logits = detector.logits(to_pixels(attacked, codec.config.image_size))
            matches[name] += (logits.argmax(-1) == secrets.numpy()).sum(axis=1).tolist()
            if name == "none":
                scores += evidence(statistics.to_margins(logits)).tolist()
    return {
        "marked": count,
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
    for batch, pixels in batches(unseen, rows, "negatives"):
        if (batch[0] // BATCH) % 2:
            decoded = vae.decode(autoencoder, vae.encode(autoencoder, pixels))
            pixels = to_pixels(to_images(decoded), detector.codec.config.image_size)
        parts.append(detector.raw_margins(pixels))
    return np.concatenate(parts)


def _describe_negatives(margins: np.ndarray, codec: Codec, seed: int) -> dict[str, Any]:
    length = codec.config.length
    bits = margins > 0
    secrets = Draws(seed, 0, 1).secrets(len(bits), length).numpy().astype(bool)
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
    document = {**provenance(command_line(), settings), "seed": seed, "results": found}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(document, indent=2) + "\n")


def rate(successes: int, trials: int) -> dict[str, Any]:
    """A share with its exact interval."""
    low, high = statistics.clopper_pearson(successes, trials)
    return {"rate": rounded(successes / trials), "interval_95": [rounded(low), rounded(high)], "of": trials}


def rounded(value: Any, digits: int = 4) -> float:
    return round(float(value), digits)
