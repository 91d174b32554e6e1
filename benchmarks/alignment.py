"""Alignment: bits read from turned and cropped pictures with and without it, what it costs, and false positives.

    python benchmarks/alignment.py --pictures PHOTOGRAPHS --out results/alignment.json

Codecs of real latent spaces mark photographs that training never opened, Vista's marks painted scenes that it never
saw, each by `diffmark embed`. Times are of one thread's processor, as ratios to reading the picture as it is.
Unmarked pictures are read in the view that alignment finds and compared with random secrets. With --codecs only
these are measured, and the file keeps its figures of the others; each has its own command and revision.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from diffmark import statistics
from diffmark.alignment import CLEAR, Aligner, View
from diffmark.attacks.distortion import recompress
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.studio import painted_scenes
from diffmark.images import read_image
from diffmark.provenance import command_line, revision
from diffmark.training.measurement import rate, rounded, write_result
from diffmark.training.photographs import unseen_photographs

FIRST = 80_000  # of the held-out scenes; other benchmarks use others
SECRETS = 100_000  # random ones that each unmarked picture is compared with
Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def turn(degrees: float) -> Change:
    """About the centre, either way, black corners."""
    return lambda image, rng: image.rotate(degrees * rng.choice((-1, 1)), Image.Resampling.BICUBIC)


def crop(width: float, height: float) -> Change:
    """To these shares of the sides, anywhere."""

    def change(image: Image.Image, rng: np.random.Generator) -> Image.Image:
        w, h = round(image.width * width), round(image.height * height)
        x, y = int(rng.integers(image.width - w + 1)), int(rng.integers(image.height - h + 1))
        return image.crop((x, y, x + w, y + h))

    return change


def both(first: Change, second: Change) -> Change:
    return lambda image, rng: second(first(image, rng), rng)


CHANGES: dict[str, Change] = {
    "none": lambda image, rng: image,
    **{f"turned by {degrees} degrees": turn(degrees) for degrees in (1, 2, 5, 10)},
    **{f"cropped to {share}%": crop(share / 100, share / 100) for share in (95, 90, 80)},
    "cropped to 100% x 85%": crop(1, 0.85),
    "turned by 3 degrees, cropped to 90%": both(turn(3), crop(0.9, 0.9)),
    "cropped to 90%, JPEG 75": both(crop(0.9, 0.9), lambda image, rng: recompress(image, "JPEG", 75)),
}


class Reader:
    """A picture's bits with and without alignment, and the processor's seconds that each takes."""

    def __init__(self, codec: str) -> None:
        self.detector = Detector.from_pretrained(codec)
        self.codec, self.vae = self.detector.codec, self.detector.vae
        self.aligner = Aligner(self.codec, self.vae)

    def read(self, image: Image.Image) -> dict[str, Any]:
        """What `Detector(align=True)` does, step by step, so that the evidence is at hand too."""
        times = [time.process_time()]
        plain = self.detector.detect(image).bits
        times.append(time.process_time())
        picture = read_image(image).resized(self.detector.image_size)
        view, evidence = self.aligner.find(picture)
        moved = evidence >= CLEAR and view != View()
        aligned = self.detector.detect(view.undo(picture) if moved else picture).bits
        times.append(time.process_time())
        seconds = np.diff(times)
        return {"plain": plain, "aligned": aligned, "moved": moved, "evidence": evidence, "seconds": seconds}


def measure(reader: Reader, pictures: list[Image.Image], seed: int) -> dict[str, Any]:
    """A row for each change to marked pictures."""
    length = reader.codec.config.length
    threshold = statistics.match_threshold(length, 1e-6)
    rng = np.random.default_rng(seed)
    secrets = rng.integers(0, 2, (len(pictures), length), dtype=np.uint8)
    marked = [
        embed(image, reader.codec, reader.vae, secret)
        for image, secret in zip(pictures, secrets, strict=True)
    ]
    rows = {}
    for name, change in tqdm(CHANGES.items(), "changes", disable=None):
        found = [reader.read(change(image, rng)) for image in marked]
        rows[name] = {"moved": sum(one["moved"] for one in found), "times_plain": _times_plain(found)}
        for way in ("plain", "aligned"):
            matches = (np.stack([one[way] for one in found]) == secrets).sum(axis=1)
            rows[name][way] = {
                "bit_accuracy": rounded(matches.mean() / length),
                "worst_image": rounded(matches.min() / length),
                "tpr_at_1e-06": rate(int((matches >= threshold).sum()), len(found)),
            }
        print(name, {way: rows[name][way]["bit_accuracy"] for way in ("plain", "aligned")}, flush=True)
    return {"strength": reader.codec.config.embed_strength, "images": len(marked), "changes": rows}


def measure_unmarked(reader: Reader, images: list[Image.Image], seed: int) -> dict[str, Any]:
    """What is found in unmarked pictures, and how often a random secret fits what is then read."""
    found = [reader.read(image) for image in tqdm(images, "unmarked", disable=None)]
    length = reader.codec.config.length
    evidence = sorted(one["evidence"] for one in found)
    figures: dict[str, Any] = {
        "images": len(images),
        "moved": rate(sum(one["moved"] for one in found), len(found)),
        "evidence": {"median": rounded(np.median(evidence)), "largest": rounded(evidence[-1])},
        "times_plain": _times_plain(found),
    }
    rng = np.random.default_rng(seed)
    shape = (SECRETS, length)
    matches = [(rng.integers(0, 2, shape, dtype=np.uint8) == one["aligned"]).sum(axis=1) for one in found]
    for fpr in (1e-2, 1e-3, 1e-4):
        fits = np.concatenate(matches) >= statistics.match_threshold(length, fpr)
        figures[f"false_positives_at_{fpr:g}"] = rate(int(fits.sum()), len(fits))
    return figures


def _times_plain(found: list[dict[str, Any]]) -> float:
    plain, aligned = np.sum([one["seconds"] for one in found], axis=0)
    return rounded(aligned / plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--codecs", nargs="+", default=["sd", "sdxl", "sd3", "flux", "vista"])
    parser.add_argument("--count", type=int, default=8, help="marked pictures")
    parser.add_argument("--unmarked", type=int, default=16, help="other pictures, not marked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    needed = options.count + options.unmarked
    photographs = unseen_photographs(options.pictures, needed, options.seed)
    found = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    made_by = {"command": command_line(), "revision": revision()}
    for codec in options.codecs:
        print(codec)
        reader = Reader(codec)
        pictures = list(painted_scenes(needed, FIRST)) if codec == "vista" else photographs
        found[codec] = made_by | measure(reader, pictures[: options.count], options.seed)
        found[codec]["unmarked"] = measure_unmarked(reader, pictures[options.count :], options.seed)
        write_result(options.out, found, {"clear": CLEAR}, options.seed)


if __name__ == "__main__":
    main()
