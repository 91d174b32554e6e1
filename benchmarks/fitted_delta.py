"""What fitting delta to its picture is worth: the same unseen photographs and secrets with and without, in one run.

Embedded with our own autoencoders; with --tiny also same seed, D(z + delta) against D(z), through the tiny ones.

    python benchmarks/fitted_delta.py --pictures PHOTOGRAPHS --count 8 --out results/fitted_delta.json
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from diffmark import vae
from diffmark.codec import Codec
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.latent_marks import delta_at_z0
from diffmark.training.measurement import rounded, write_result
from diffmark.training.photographs import unseen_photographs
from diffmark.training.tiny import open_autoencoder
from diffmark.vista.training.data import to_tensor, to_uint8

TINY = {"sd": "taesd", "sdxl": "taesdxl", "sd3": "taesd3", "flux": "taef1"}
STRENGTHS = (0.5, 0.71, 1.0)


def with_fit(codec: Codec, fitted: bool) -> Codec:
    other = Codec(replace(codec.config, fitted=fitted), codec.calibration)
    other.load_state_dict(codec.state_dict())
    return other.eval()


def embedded(detector: Detector, photographs: list[Image.Image], secrets: np.ndarray) -> list[dict[str, Any]]:
    """Bit accuracy and PSNR over strengths, plain and fitted, and what fitting costs in time."""
    rows = []
    for strength in tqdm(STRENGTHS, desc="embedding", disable=None):
        row: dict[str, Any] = {"strength": strength}
        for name, fitted in (("plain", False), ("fitted", True)):
            codec, start = with_fit(detector.codec, fitted), time.process_time()
            images = [
                embed(image, codec, detector.vae, secrets[i], strength) for i, image in enumerate(photographs)
            ]
            seconds = (time.process_time() - start) / len(images)
            row[name] = {**figures(detector, images, photographs, secrets), "seconds": rounded(seconds)}
        rows.append(row)
    return rows


@torch.no_grad()
def same_seed(
    detector: Detector, tiny: Any, photographs: list[Image.Image], secrets: np.ndarray
) -> list[dict[str, Any]]:
    """The same at z0 of the tiny autoencoder, read with it."""
    reader = Detector(detector.codec, tiny)
    latents = [vae.encode(tiny, to_tensor(np.asarray(image)[None])) for image in photographs]
    plain = [picture(tiny, z) for z in latents]
    rows = []
    for strength in tqdm(STRENGTHS, desc="same seed", disable=None):
        row: dict[str, Any] = {"strength": strength}
        for name, fitted in (("plain", False), ("fitted", True)):
            codec = with_fit(detector.codec, fitted)
            deltas = [
                delta_at_z0(codec, tiny, z, secrets[i], strength, detector.vae) for i, z in enumerate(latents)
            ]
            images = [picture(tiny, z + strength * delta) for z, delta in zip(latents, deltas, strict=True)]
            row[name] = figures(reader, images, plain, secrets)
        rows.append(row)
    return rows


def picture(autoencoder: Any, z: torch.Tensor) -> Image.Image:
    return Image.fromarray(to_uint8(vae.decode(autoencoder, z))[0])


def figures(
    reader: Detector, images: list[Image.Image], plain: list[Image.Image], secrets: np.ndarray
) -> dict[str, float]:
    margins = np.stack([reader.detect(image).margins for image in images])
    signed = margins * (2.0 * secrets[: len(images)] - 1)
    return {
        "bit_accuracy": rounded((signed > 0).mean()),
        "worst_image": rounded((signed > 0).mean(axis=1).min()),
        "psnr": rounded(np.mean(list(map(psnr, images, plain)))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--tiny", type=Path, help="folder of the tiny autoencoders, for same-seed figures")
    parser.add_argument("--codecs", nargs="+", default=list(TINY), choices=list(TINY))
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--same-seed", type=int, default=4, help="of them through the tiny autoencoders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    photographs = unseen_photographs(options.pictures, options.count, options.seed)
    secrets = np.random.default_rng(options.seed).integers(2, size=(options.count, 64), dtype=np.uint8)
    found: dict[str, Any] = {}
    for family in options.codecs:
        detector = Detector.from_pretrained(family)
        found[family] = {"embedded": embedded(detector, photographs, secrets)}
        if options.tiny:
            tiny = open_autoencoder(options.tiny / TINY[family])
            found[family]["same_seed"] = same_seed(detector, tiny, photographs[: options.same_seed], secrets)
    settings = {"photographs": options.count, "same_seed": options.same_seed, "pixels": 512}
    write_result(options.out, found, settings, options.seed)


if __name__ == "__main__":
    main()
