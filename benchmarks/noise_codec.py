"""What a codec of initial noise depends on: the sampler, the size, one secret for many pictures, unmarked pictures.

    python benchmarks/noise_codec.py vista --pictures PHOTOGRAPHS --out results/noise_codec.json

samplers   bits that are read under other samplers than the one that the reader was trained with
sizes      the same at other sizes than the native one, read at the native one
alike      how much pictures of one prompt resemble each other, with a secret each and with one secret for all: mean
           distance in the scene classifier's features, over that of unmarked pictures
unmarked   shares of unmarked pictures (the model's own, photographs) that pass the blind test and the test against
           a secret, over several keys

What survives attacks is measured by survival.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
from survival import GUIDANCE, STEPS, features, keep, results_of
from tqdm import tqdm

from diffmark import Codec, Detector, watermark
from diffmark.evaluation.batches import batches
from diffmark.evaluation.image_model import unseen_specs
from diffmark.images import read_image
from diffmark.latent.noise import blind_p_value
from diffmark.latent.vae import encode
from diffmark.mark.generation import ImageSpec
from diffmark.pixel.keys import OperatorKey
from diffmark.provenance import command_line, weights_digest
from diffmark.secret import Bits, random_secrets
from diffmark.statistics import clopper_pearson, match_tail, match_threshold
from diffmark.vista import load_pipeline, model_digest

BATCH, RATE, KEYS = 8, 1e-3, 25
SAMPLERS = {
    "DDIM, 50 steps": ("DDIMScheduler", 50),
    "DDIM, 20 steps": ("DDIMScheduler", 20),
    "DPM++ 2M, 20 steps": ("DPMSolverMultistepScheduler", 20),
    "Euler, 30 steps": ("EulerDiscreteScheduler", 30),
    "UniPC, 20 steps": ("UniPCMultistepScheduler", 20),
    "Euler ancestral, 30 steps": ("EulerAncestralDiscreteScheduler", 30),
    "DDPM, 50 steps": ("DDPMScheduler", 50),
}
SIZES = ((256, 256), (256, 384), (384, 384), (512, 512))


class Runs:
    """A pipeline and the detector of a codec."""

    def __init__(self, codec: Codec) -> None:
        self.pipe = load_pipeline("vista")
        self.pipe.set_progress_bar_config(disable=True)
        self.codec, self.detector = codec, Detector(codec, self.pipe.vae)
        self.scheduler = self.pipe.scheduler

    def images(
        self, specs: list[ImageSpec], secrets: Bits | None, sampler: str = "DDIM, 50 steps", **more: Any
    ) -> Any:
        """Pictures of the specs' prompts and seeds, with a secret each, or unmarked."""
        name, steps = SAMPLERS[sampler]
        self.pipe.scheduler = getattr(diffusers, name).from_config(self.scheduler.config)
        made = []
        for part in batches(list(range(len(specs))), BATCH):
            chosen = [specs[index] for index in part]
            bits = random_secrets(len(part)) if secrets is None else secrets[part]
            strength = 0.0 if secrets is None else 1.0
            with watermark(self.pipe, self.codec, bits, strength, pixel=False, verify=None):
                made += self.pipe(
                    [spec.prompt for spec in chosen],
                    num_inference_steps=steps,
                    guidance_scale=GUIDANCE,
                    generator=[torch.Generator().manual_seed(spec.seed) for spec in chosen],
                    **more,
                ).images
        self.pipe.scheduler = self.scheduler
        return made

    def read(self, images: list[Any], secrets: Bits) -> dict[str, Any]:
        """Share of the bits that are read, and of the pictures that pass at 0.1%."""
        bits = np.stack([found.bits for found in self.detector.detect_many(images)])
        matches = (bits == secrets).sum(axis=1)
        passed = int((matches >= match_threshold(bits.shape[1], RATE)).sum())
        return {
            "bits": round(float(matches.mean() / bits.shape[1]), 4),
            "tpr": round(passed / len(matches), 4),
            "interval_95": [round(value, 4) for value in clopper_pearson(passed, len(matches))],
        }


def alike(runs: Runs, prompts: int, each: int) -> dict[str, float]:
    """Mean distance of pictures of one prompt in the classifier's features, over that of unmarked ones."""
    specs = [
        ImageSpec(spec.prompt, spec.secret, spec.seed + 1000 * number)
        for spec in unseen_specs(prompts, 64, 900)
        for number in range(each)
    ]
    shared = np.repeat(np.stack([spec.secret for spec in specs[::each]]), each, axis=0)
    sets = {"unmarked": None, "a secret each": random_secrets(len(specs)), "one secret": shared}
    found = {}
    for name, secrets in sets.items():
        rows = features(runs.images(specs, secrets)).reshape(prompts, each, -1)
        gaps = [np.linalg.norm(rows[:, i] - rows[:, j], axis=1) for i in range(each) for j in range(i)]
        found[name] = float(np.mean(gaps))
    return {name: round(value / found["unmarked"], 3) for name, value in found.items()}


@torch.no_grad()
def unmarked(runs: Runs, count: int, photographs: Path) -> dict[str, Any]:
    """Shares of unmarked pictures that pass, over KEYS keys each."""
    files = sorted(path for path in photographs.iterdir() if path.suffix.lower() in (".jpg", ".png"))[:count]
    sets = {
        "generated": runs.images(unseen_specs(count, 64, 2000), None, "DDIM, 20 steps"),
        "photographs": files,
    }
    keys = [OperatorKey(bytes([number]) * 32) for number in range(KEYS)]
    patterns = [runs.codec.keyed_by(key) for key in keys]
    found = {}
    for name, images in sets.items():
        estimates = []
        for part in batches(list(images), BATCH):
            pixels = np.stack(
                [read_image(image).resized(runs.codec.config.image_size).pixels() for image in part]
            )
            estimates.append(runs.codec.decode(encode(runs.pipe.vae, torch.from_numpy(pixels))).numpy())
        margins = np.concatenate([runs.codec.margins(np.concatenate(estimates), keyed) for keyed in patterns])
        blind = np.array([blind_p_value(row) for row in margins])
        secrets = np.random.default_rng(0).integers(0, 2, margins.shape)
        exact = np.array(
            [match_tail(int(n), margins.shape[1]) for n in ((margins > 0) == secrets).sum(axis=1)]
        )
        found[name] = {"pictures": len(images), "keys": KEYS} | {
            test: {f"{rate:g}": round(float((p <= rate).mean()), 5) for rate in (1e-1, 1e-2, 1e-3)}
            for test, p in (("blind", blind), ("secret", exact))
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codec")
    parser.add_argument("--count", type=int, default=24, help="pictures a sampler; a third of them a size")
    parser.add_argument(
        "--pictures", type=Path, required=True, help="folder of photographs, as unmarked pictures"
    )
    parser.add_argument("--unmarked", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    codec = Codec.from_pretrained(arguments.codec)
    runs = Runs(codec)
    config = {
        "codec": arguments.codec,
        "weights": weights_digest(codec, half=True),
        "model": model_digest("vista"),
    }
    config |= {"dose": codec.injection.dose, "guidance": GUIDANCE, "steps": STEPS, "rate": RATE}
    config |= {"count": arguments.count, "unmarked": arguments.unmarked}
    specs = unseen_specs(arguments.count, codec.config.length, 700)
    secrets = np.stack([spec.secret for spec in specs])
    few = max(arguments.count // 3, 1)

    def sampled() -> dict[str, Any]:
        names = tqdm(SAMPLERS, "samplers", disable=None)
        return {name: runs.read(runs.images(specs, secrets, name), secrets) for name in names}

    def sized() -> dict[str, Any]:
        found = {}
        for height, width in tqdm(SIZES, "sizes", disable=None):
            images = runs.images(specs[:few], secrets[:few], height=height, width=width)
            found[f"{width} x {height}"] = runs.read(images, secrets[:few])
        return found

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "samplers": sampled,
        "sizes": sized,
        "alike": lambda: alike(runs, 8, 4),
        "unmarked": lambda: unmarked(runs, arguments.unmarked, arguments.pictures),
    }
    for name, part in parts.items():  # what is measured is kept if a run is cut off
        if name not in results_of(arguments.out, config):
            keep(arguments.out, command_line(), config, name, part(), list(parts))
    print(json.dumps(results_of(arguments.out, config), indent=1))


if __name__ == "__main__":
    main()
