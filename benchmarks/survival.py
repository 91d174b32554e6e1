"""What of a codec's mark survives regeneration by models that its training never used, and how it looks.

python benchmarks/survival.py vista --out results/survival/vista.json
python benchmarks/survival.py <codec folder> --out <file>

Pictures of unseen prompts, 50 guided steps, through 8-bit images, marked by the latent codec alone. Regeneration
(Regen-Diff), twice (2x-Rinse), learned compression (Regen-VAE); with --transfer also the same codec through each
sibling's own denoiser. Looks: PSNR of the same seed, blockiness on the 8-pixel grid, Frechet distance to painted
scenes in the scene classifier's features, alignment. Generated pictures are kept in --cache, to resume a run.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffmark import Codec, Detector, watermark
from diffmark.attacks.regeneration import Regeneration, compression_attack
from diffmark.evaluation.batches import batches
from diffmark.evaluation.image_model import unseen_specs
from diffmark.evaluation.perception import alignment
from diffmark.images import read_image
from diffmark.latent.injection import Injection
from diffmark.mark.generation import ImageSpec
from diffmark.metrics import blockiness, frechet_distance, psnr
from diffmark.provenance import provenance, weights_digest
from diffmark.statistics import clopper_pearson, match_threshold, soft_cost, soft_tail, soft_weights
from diffmark.vista import load_classifier, load_pipeline, model_digest
from diffmark.vista.evaluation import contact_sheet
from diffmark.vista.paint import painted_scenes

GUIDANCE, STEPS, BATCH, RATE = 4.0, 50, 8, 1e-3
SURROGATES = ("vista-ink", "vista-oil", "vista-v")
SIBLINGS = ("vista-ink", "vista-oil", "vista-v", "vista-photographic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("codec")
    parser.add_argument(
        "--injection", help="another mode than the codec's own, at the dose that it has for it"
    )
    parser.add_argument("--dose", type=float, help="another dose than the codec's")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="first unseen prompt")
    parser.add_argument("--surrogates", nargs="+", default=list(SURROGATES))
    parser.add_argument("--transfer", type=int, default=0, help="prompts for each sibling's own denoiser")
    parser.add_argument("--parts", nargs="+", help="only these parts of the result: looks, compression, ...")
    parser.add_argument(
        "--cache", type=Path, default=Path("runs/survival"), help="folder of generated pictures"
    )
    parser.add_argument("--sheet", type=Path, help="PNG of plain pictures over marked ones")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    codec = Codec.from_pretrained(arguments.codec)
    injection = codec.injection
    if arguments.injection:
        injection = codec.dosing.in_mode(arguments.injection)
    if arguments.dose:
        injection = replace(injection, dose=arguments.dose)
    specs = unseen_specs(arguments.count, codec.config.length, arguments.first)
    makers = {name: Generator(arguments.cache, name, codec, injection) for name in ("vista", *SIBLINGS)}
    plain, marked = (makers["vista"].images(specs, strength) for strength in (0.0, 1.0))
    answers = Answers(arguments.cache, Detector(codec, load_pipeline("vista").vae), injection)

    config = {"codec": arguments.codec, "weights": weights_digest(codec, half=True)}
    config |= {"injection": asdict(injection), "count": arguments.count, "first": arguments.first}
    config |= {"steps": STEPS, "guidance": GUIDANCE, "rate": RATE, "model": model_digest("vista")}
    config |= {"surrogates": {name: model_digest(name) for name in arguments.surrogates}}
    command = f"python benchmarks/survival.py {arguments.codec}"
    command += f" --injection {arguments.injection}" if arguments.injection else ""
    command += f" --dose {arguments.dose:g}" if arguments.dose else ""
    command += f" --count {arguments.count}" + (f" --first {arguments.first}" if arguments.first else "")
    command += f" --transfer {arguments.transfer}" if arguments.transfer else ""
    command += f" --out {arguments.out}"

    def by(name: str, rounds: int, values: tuple[int, ...]) -> dict[str, Any]:
        attack = Regeneration(load_pipeline(name), name, rounds)
        kind = f"{name}-{rounds}"
        return {str(value): answers.attacked(kind, attack, value, specs, marked) for value in values}

    def compressed() -> dict[str, Any]:
        attack = compression_attack().distort
        return {
            str(value): answers.attacked("compression", attack, value, specs, marked) for value in (7, 4, 1)
        }

    def transferred() -> dict[str, Any]:
        chosen = specs[: arguments.transfer]
        return {name: answers.read(makers[name].images(chosen, 1.0), chosen) for name in SIBLINGS}

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "looks": lambda: looks(specs, plain, marked, arguments.first),
        "clean": lambda: answers.read(marked, specs),
        "unmarked": lambda: answers.read(plain, specs),
    }
    for name in arguments.surrogates:
        parts[f"regeneration_{name}"] = partial(by, name, 1, (40, 120, 200))
        parts[f"rinse_{name}"] = partial(by, name, 2, (20, 60, 100))
    parts["compression"] = compressed
    if arguments.transfer:
        parts["transfer"] = transferred
    for name in arguments.parts or parts:
        if name not in results_of(arguments.out, config):
            keep(arguments.out, command, config, name, parts[name](), list(parts))
    print(json.dumps(results_of(arguments.out, config), indent=1))
    if arguments.sheet:
        shown = [np.asarray(image) for images in (plain, marked) for image in images[:8]]
        Image.fromarray(contact_sheet(shown, columns=8)).save(arguments.sheet)


def results_of(file: Path, config: dict[str, Any]) -> dict[str, Any]:
    """What an earlier run of the same settings has measured."""
    if not file.is_file():
        return {}
    document = json.loads(file.read_text())
    return document["results"] if document["config"] == json.loads(json.dumps(config)) else {}


def keep(
    file: Path, command: str, config: dict[str, Any], name: str, found: dict[str, Any], order: list[str]
) -> None:
    """Add a part to the result; others may be writing theirs."""
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        results = results_of(file, config) | {name: found}
        results = {part: results[part] for part in order if part in results}
        file.write_text(json.dumps({**provenance(command, config), "results": results}, indent=1) + "\n")
    finally:
        os.close(folder)


def looks(
    specs: list[ImageSpec], plain: list[Image.Image], marked: list[Image.Image], first: int
) -> dict[str, Any]:
    """Marked pictures against unmarked ones of the same seeds, as pairs and as sets."""
    painted = features(list(painted_scenes(len(specs), first + len(specs))))
    frechet = [frechet_distance(features(images), painted) for images in (marked, plain)]
    blocks = [float(np.mean([blockiness(image) for image in images])) for images in (marked, plain)]
    aligned = [alignment(specs, images) for images in (marked, plain)]
    pairs = zip(plain, marked, strict=True)
    return {
        "psnr": round(float(np.mean([psnr(*pair) for pair in pairs])), 2),
        "blockiness_over_unmarked": round(blocks[0] / blocks[1], 4),
        "frechet": dict(zip(("marked", "unmarked"), np.round(frechet, 2).tolist(), strict=True)),
        "frechet_over_unmarked": round(frechet[0] / frechet[1], 4),
        "alignment": dict(zip(("marked", "unmarked"), np.round(aligned, 4).tolist(), strict=True)),
    }


class Generator:
    """Pictures of a pipeline with the codec's mark and without it, each made once."""

    def __init__(self, folder: Path, model: str, codec: Codec, injection: Injection) -> None:
        self.model, self.codec, self.injection = model, codec, injection
        marked = f"{weights_digest(codec, half=True)} {codec.dosing.deviation} {asdict(injection)}"
        self.folders = {
            strength: folder
            / f"{model}-{hashlib.sha256(f'{model_digest(model)} {what}'.encode()).hexdigest()[:12]}"
            for strength, what in ((0.0, ""), (1.0, marked))
        }

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.model)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def images(self, specs: list[ImageSpec], strength: float) -> list[Image.Image]:
        """The picture of each spec, as an 8-bit file; strength 0 is without a mark."""
        folder = self.folders[strength]
        folder.mkdir(parents=True, exist_ok=True)
        missing = [spec for spec in specs if not (folder / f"{spec.seed}.png").is_file()]
        for part in batches(missing, BATCH):
            secrets = np.stack([spec.secret for spec in part])
            with watermark(
                self.pipe, self.codec, secrets, strength, self.injection, pixel=False, verify=None
            ):
                made = self.pipe(
                    [spec.prompt for spec in part],
                    num_inference_steps=STEPS,
                    guidance_scale=GUIDANCE,
                    generator=[torch.Generator().manual_seed(spec.seed) for spec in part],
                ).images
            for spec, image in zip(part, made, strict=True):
                image.save(folder / f"{spec.seed}.png")
        return [Image.open(folder / f"{spec.seed}.png").convert("RGB") for spec in specs]


@torch.no_grad()
def features(images: list[Image.Image]) -> Any:
    """What the scene classifier sees in pictures, (N, D)."""
    classifier = load_classifier()
    rows = [classifier.features(torch.from_numpy(read_image(image).pixels())[None])[0] for image in images]
    return torch.stack(rows).double().numpy()


class Answers:
    """How many bits of each picture's secret are read. Margins after an attack are kept, as attacks take time."""

    def __init__(self, folder: Path, detector: Detector, injection: Injection) -> None:
        codec = detector.codec
        what = f"{weights_digest(codec, half=True)} {codec.dosing.deviation} {asdict(injection)}"
        self.detector = detector
        self.folder = folder / f"margins-{hashlib.sha256(what.encode()).hexdigest()[:12]}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def margins(self, images: list[Image.Image]) -> Any:
        """What the network says, before the calibration takes its lean out, (N, L)."""
        size = self.detector.image_size
        pixels = [read_image(image).resized(size).pixels() for image in images]
        return np.concatenate([self.detector.raw_margins(np.stack(part)) for part in batches(pixels, BATCH)])

    def read(self, images: list[Image.Image], specs: list[ImageSpec]) -> dict[str, Any]:
        return self.counted(self.margins(images), specs)

    def attacked(
        self, kind: str, attack: Any, value: float, specs: list[ImageSpec], images: list[Image.Image]
    ) -> dict[str, Any]:
        """Each picture after the attack, with random numbers of its own."""
        files = [self.folder / f"{kind}-{value:g}-{spec.seed}.npy" for spec in specs]
        missing = [item for item in zip(files, specs, images, strict=True) if not item[0].is_file()]
        for part in batches(missing, BATCH):
            draws = [np.random.default_rng([spec.seed, 1]) for _, spec, _ in part]
            made = attack.batch([image for *_, image in part], value, draws)
            for (file, *_), margins in zip(part, self.margins(made), strict=True):
                np.save(file, margins)
        return self.counted(np.stack([np.load(file) for file in files]), specs)

    def counted(self, margins: Any, specs: list[ImageSpec]) -> dict[str, Any]:
        """Share of the bits, and of the images that pass at a false-positive rate of 0.1%: by the exact test of
        matching bits, and by the soft one, which weighs bits by how sure the reader is of them."""
        calibration, secrets = self.detector.codec.calibration, np.stack([spec.secret for spec in specs])
        margins = margins if calibration is None else calibration.whitened(margins)
        matches, length = ((margins > 0) == secrets).sum(axis=1), margins.shape[1]
        passed = int((matches >= match_threshold(length, RATE)).sum())
        soft = [soft_p_value(*pair) <= RATE for pair in zip(margins, secrets, strict=True)]
        return {
            "bits": round(float(matches.mean() / length), 4),
            "tpr": round(passed / len(matches), 4),
            "interval_95": [round(value, 4) for value in clopper_pearson(passed, len(matches))],
            "tpr_soft": round(float(np.mean(soft)), 4),
        }


def soft_p_value(margins: Any, secret: Any) -> float:
    """Of one image's margins (L,) against its secret."""
    weights = soft_weights(margins)
    return soft_tail(soft_cost(margins > 0, secret, weights), weights)


if __name__ == "__main__":
    main()
