"""A family's codec beside what a user could install instead, on the same unseen photographs, in one run.

Every method marks the photographs as its package does by default, and reads them after the distortions of WAVES.
Times are the processor's for one image on one thread, from the picture in memory to its bits; onnxruntime, which
rivaGan's package gives all cores, is given one.

    python benchmarks/family_comparison.py --pictures PHOTOGRAPHS --fast --align \\
        --out results/family_comparison.json
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from diffmark.attacks.distortion import ATTACKS
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.fast import OnnxPixelDecoder, export_onnx, load_pixel_decoder
from diffmark.images import read_image
from diffmark.methods.base import Method
from diffmark.methods.classic import BlindWatermark, InvisibleWatermark
from diffmark.secret import Bits
from diffmark.training.measurement import rounded, write_result
from diffmark.training.photographs import unseen_photographs

STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of each distortion, on the scale of WAVES


class FamilyCodec(Method):
    """A bundled codec with its own autoencoder, read in one of the ways of READERS."""

    def __init__(self, codec: str, way: str = "") -> None:
        self.name = f"diffmark {codec} {way}".strip()
        self.detector = Detector.from_pretrained(codec)
        self.bits = self.detector.codec.config.length
        self.read = READERS[way](codec)

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        return embed(image, self.detector.codec, self.detector.vae, secret)

    def decode(self, images: Any) -> NDArray[np.float64]:
        return np.stack([self.read(image) for image in images]).astype(np.float64)


Read = Callable[[Image.Image], NDArray[np.float32]]  # margins (L,) of an image


def by_detector(codec: str, **options: bool) -> Read:
    detector = Detector.from_pretrained(codec, **options)
    return lambda image: detector.detect(image).margins


def by_onnx(codec: str) -> Read:
    with tempfile.TemporaryDirectory() as folder:
        read = OnnxPixelDecoder(export_onnx(load_pixel_decoder(codec), Path(folder) / "pixel.onnx"))

    def margins(image: Image.Image) -> NDArray[np.float32]:
        logits = read(read_image(image).resized(read.image_size).pixels()[None])[0]
        return logits[:, 1] - logits[:, 0]

    return margins


READERS: dict[str, Callable[[str], Read]] = {
    "": by_detector,
    "--align": lambda codec: by_detector(codec, align=True),
    "--fast": lambda codec: by_detector(codec, fast=True),
    "--fast, onnxruntime": by_onnx,
}


def measure(method: Method, photographs: list[Image.Image], seed: int) -> dict[str, Any]:
    """PSNR, bit accuracy by distortion and strength, seconds a decoded image."""
    secrets = np.random.default_rng(seed).integers(2, size=(len(photographs), method.bits), dtype=np.uint8)
    marked = [method.embed(image, secret) for image, secret in zip(photographs, secrets, strict=True)]
    found: dict[str, Any] = {
        "bits": method.bits,
        "psnr": rounded(np.mean(list(map(psnr, marked, photographs)))),
    }
    method.decode(marked[:1])  # what is loaded at the first reading is not counted
    start = time.process_time()
    margins = method.decode(marked)
    found["seconds_to_read"] = rounded((time.process_time() - start) / len(marked))
    found["bit_accuracy"] = rounded(((margins > 0) == secrets).mean())
    found["attacks"] = {}
    for attack in tqdm(ATTACKS, desc=method.name, disable=None):
        row = found["attacks"][attack.name] = {}
        for strength in STRENGTHS:
            margins = method.decode(attack.on_all(marked, strength, seed))
            row[f"{attack.value(strength):g}"] = rounded(((margins > 0) == secrets).mean())
    return found


def give_one_thread() -> None:
    """To torch, and to every session of onnxruntime from now on, whoever opens it."""
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession
    onnxruntime.InferenceSession = functools.partial(session, sess_options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--codec", default="sd")
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--fast", action="store_true", help="read with the pixel decoder as well")
    parser.add_argument(
        "--align", action="store_true", help="look for turns and crops as well, which is slow"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    give_one_thread()
    photographs = unseen_photographs(options.pictures, options.count, options.seed)
    unasked = {name for name in ("fast", "align") if not getattr(options, name)}
    ways = [way for way in READERS if not any(f"--{name}" in way for name in unasked)]
    methods: list[Method] = [FamilyCodec(options.codec, way) for way in ways]
    methods += [InvisibleWatermark(name) for name in ("rivaGan", "dwtDctSvd", "dwtDct")]
    methods.append(BlindWatermark())
    found = {method.name: measure(method, photographs, options.seed) for method in methods}
    settings = {"codec": options.codec, "photographs": options.count, "pixels": 512, "strengths": STRENGTHS}
    write_result(options.out, found, settings, options.seed)


if __name__ == "__main__":
    main()
