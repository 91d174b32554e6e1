"""A family's codec beside what a user could install instead, on the same unseen photographs, in one run.

Every method marks the photographs as its package does by default, and reads them after the distortions of WAVES.
Times are of one image on one thread, decoding only.

    python benchmarks/family_comparison.py --pictures PHOTOGRAPHS --codec sd --out results/family_comparison.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from diffmark.attacks.distortion import ATTACKS
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.methods.base import Method
from diffmark.methods.classic import BlindWatermark, InvisibleWatermark
from diffmark.secret import Bits
from diffmark.training.measurement import rounded, write_result
from diffmark.training.photographs import centre_square, split_photographs

STRENGTHS = {  # of each distortion, on the scale of WAVES from 0 to 1
    "rotation": 0.2, "resized_crop": 0.2, "erasing": 0.5, "brightness": 0.5,
    "contrast": 0.5, "blur": 0.1, "noise": 0.5, "jpeg": 0.5,
}  # fmt: skip


class FamilyCodec(Method):
    """A bundled codec with its own autoencoder, or read by its pixel decoder."""

    def __init__(self, codec: str, strength: float, fast: bool = False) -> None:
        self.name = (
            f"diffmark {codec}" + (" --fast" if fast else "") + (f" x{strength:g}" if strength != 1 else "")
        )
        self.detector, self.strength = Detector.from_pretrained(codec), strength
        self.reader = Detector.from_pretrained(codec, fast=True) if fast else self.detector
        self.bits = self.detector.codec.config.length

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        return embed(image, self.detector.codec, self.detector.vae, secret, self.strength)

    def decode(self, images: Any) -> NDArray[np.float64]:
        return np.stack([found.margins for found in self.reader.detect_many(images)]).astype(np.float64)


def measure(method: Method, photographs: list[Image.Image], seed: int) -> dict[str, Any]:
    """PSNR, bit accuracy by distortion, seconds a decoded image."""
    secrets = np.random.default_rng(seed).integers(2, size=(len(photographs), method.bits), dtype=np.uint8)
    marked = [method.embed(image, secret) for image, secret in zip(photographs, secrets, strict=True)]
    found: dict[str, Any] = {
        "bits": method.bits,
        "psnr": rounded(np.mean(list(map(psnr, marked, photographs)))),
    }
    start = time.perf_counter()
    margins = {"none": method.decode(marked)}
    found["seconds_to_read"] = rounded((time.perf_counter() - start) / len(marked))
    for attack in tqdm(ATTACKS, desc=method.name, disable=None):
        changed = attack.on_all(marked, STRENGTHS[attack.name], seed)
        margins[f"{attack.name} {attack.value(STRENGTHS[attack.name]):g}"] = method.decode(changed)
    found["bit_accuracy"] = {
        name: rounded(((values > 0) == secrets).mean()) for name, values in margins.items()
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--codec", default="sd")
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0])
    parser.add_argument("--fast", action="store_true", help="read with the pixel decoder as well")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    held_out = list(split_photographs(options.pictures, 5).held_out)
    order = np.random.default_rng(options.seed).permutation(len(held_out))[: options.count]
    photographs = [Image.fromarray(centre_square(held_out[i], 512)) for i in order]
    methods: list[Method] = [FamilyCodec(options.codec, strength) for strength in options.strengths]
    if options.fast:
        methods.append(FamilyCodec(options.codec, options.strengths[0], fast=True))
    methods += [InvisibleWatermark(name) for name in ("rivaGan", "dwtDctSvd", "dwtDct")]
    methods.append(BlindWatermark())
    found = {method.name: measure(method, photographs, options.seed) for method in methods}
    settings = {"codec": options.codec, "photographs": options.count, "pixels": 512, "strengths": STRENGTHS}
    write_result(options.out, found, settings, options.seed)


if __name__ == "__main__":
    main()
