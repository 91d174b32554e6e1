"""One secret in both layers: what each reads after attacks, and what the sum of their log-likelihood ratios reads.

python benchmarks/both_layers.py --count 12 --out results/survival/both_layers.json

The pixel layer's margins are log-likelihood ratios. Those of the latent codec are a network's: they are scaled by
one number, fitted by maximum likelihood on pictures of other prompts after regeneration, the kept margins of

python benchmarks/survival.py vista-late --count 16 --first 500 --surrogates vista-ink --out <file>
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.optimize import minimize_scalar
from survival import BATCH, RATE, Answers, Generator

from diffmark import Codec, Detector, PixelCodec
from diffmark.attacks import distortion
from diffmark.attacks.regeneration import Regeneration, compression_attack
from diffmark.evaluation.batches import batches
from diffmark.evaluation.image_model import unseen_specs
from diffmark.provenance import provenance, weights_digest
from diffmark.statistics import clopper_pearson, match_threshold
from diffmark.vista import load_pipeline, model_digest

FITTED = [("vista-ink-1", value) for value in (40, 120, 200)] + [
    ("vista-ink-2", value) for value in (20, 60, 100)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", default="vista-late")
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument(
        "--apart", type=int, default=16, help="prompts from 500 on that the scale is fitted on"
    )
    parser.add_argument("--cache", type=Path, default=Path("runs/survival"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    codec = Codec.from_pretrained(arguments.codec)
    answers = Answers(arguments.cache, Detector(codec, load_pipeline("vista").vae), codec.injection)
    specs = unseen_specs(arguments.count, codec.config.length)
    images = Generator(arguments.cache, "vista", codec, codec.injection).images(specs, 1.0)
    pixel, secrets = PixelCodec(), np.stack([spec.secret for spec in specs])
    marked = [pixel.embed(image, spec.secret).image for image, spec in zip(images, specs, strict=True)]
    scale = fitted_scale(answers, arguments.apart)

    found: dict[str, Any] = {}
    for name, attack in attacks().items():
        made = attack(marked)
        one = np.stack([pixel.read(image).margins for image in made])
        other = scale * answers.margins(made)
        found[name] = {
            "pixel": passed(one, secrets, RATE),
            "latent": passed(other, secrets, RATE),
            "two_tries": both_tried(one, other, secrets),
            "sum": passed(one + other, secrets, RATE),
        }
        print(name, {reader: row["tpr"] for reader, row in found[name].items()}, flush=True)
    config = {"codec": arguments.codec, "weights": weights_digest(codec, half=True), "count": arguments.count}
    config |= {
        "apart": arguments.apart,
        "scale": round(scale, 4),
        "rate": RATE,
        "model": model_digest("vista"),
    }
    command = f"python benchmarks/both_layers.py --count {arguments.count} --out {arguments.out}"
    arguments.out.write_text(json.dumps({**provenance(command, config), "results": found}, indent=1) + "\n")


def fitted_scale(answers: Answers, apart: int) -> float:
    """a that makes the bits of pictures apart likeliest, P(bit = 1) = 1 / (1 + exp(-a margin))."""
    specs = unseen_specs(apart, answers.detector.length, 500)
    rows = [
        np.load(answers.folder / f"{kind}-{value:g}-{spec.seed}.npy") * (2.0 * spec.secret - 1)
        for kind, value in FITTED
        for spec in specs
    ]
    right = np.concatenate(rows)
    return float(minimize_scalar(lambda a: np.logaddexp(0, -a * right).mean(), bounds=(1e-3, 3)).x)


def attacks() -> dict[str, Callable[[list[Image.Image]], list[Image.Image]]]:
    surrogate = load_pipeline("vista-ink")

    def model(attack: Any, value: float) -> Callable[[list[Image.Image]], list[Image.Image]]:
        def run(images: list[Image.Image]) -> list[Image.Image]:
            draws = [np.random.default_rng([index, 1]) for index in range(len(images))]
            pairs = batches(list(zip(images, draws, strict=True)), BATCH)
            return [
                image
                for part in pairs
                for image in attack.batch([i for i, _ in part], value, [d for _, d in part])
            ]

        return run

    def each(attack: Any, value: float) -> Callable[[list[Image.Image]], list[Image.Image]]:
        return lambda images: [
            attack(image, value, np.random.default_rng(i)) for i, image in enumerate(images)
        ]

    once = Regeneration(surrogate, "vista-ink", 1)
    return {
        "none": lambda images: images,
        "jpeg_30": each(distortion.jpeg, 30),
        "blur_2": each(distortion.blur, 2),
        "regeneration_40": model(once, 40),
        "regeneration_120": model(once, 120),
        "regeneration_200": model(once, 200),
        "compression_1": model(compression_attack().distort, 1),
    }


def passed(margins: NDArray[np.float64], secrets: NDArray[np.uint8], rate: float) -> dict[str, Any]:
    """Share of the bits, and of the pictures that the exact test finds at `rate`."""
    matches, length = ((margins > 0) == secrets).sum(axis=1), secrets.shape[1]
    return row(matches >= match_threshold(length, rate)) | {"bits": round(float(matches.mean() / length), 4)}


def both_tried(one: Any, other: Any, secrets: NDArray[np.uint8]) -> dict[str, Any]:
    """Found by either, each at half the rate."""
    needed = match_threshold(secrets.shape[1], RATE / 2)
    return row(np.maximum(*(((margins > 0) == secrets).sum(axis=1) for margins in (one, other))) >= needed)


def row(hits: NDArray[np.bool_]) -> dict[str, Any]:
    interval = [round(value, 4) for value in clopper_pearson(int(hits.sum()), len(hits))]
    return {"tpr": round(float(hits.mean()), 4), "interval_95": interval}


if __name__ == "__main__":
    main()
