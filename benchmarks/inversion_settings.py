"""Tree-Ring, RingID and Shallow Diffuse on the embedded model: which settings leave a mark that inversion finds.

    python benchmarks/inversion_settings.py --images 24 --steps 25 --inversion 20

Pictures of unseen prompts, with and without each mark, from the same seeds. For every setting: the scores of
marked and unmarked pictures, how often a marked one scores higher (AUC), and the share above all unmarked ones.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from diffmark.baselines.inversion import InversionMethod
from diffmark.baselines.ring_id import RingID
from diffmark.baselines.shallow_diffuse import ShallowDiffuse
from diffmark.baselines.tree_ring import TreeRing
from diffmark.evaluation.image_model import unseen_specs
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.mark.loading import default_guidance, load_pipeline
from diffmark.metrics import psnr
from diffmark.provenance import provenance
from diffmark.statistics import auc

SETTINGS: list[tuple[type[InversionMethod], dict[str, Any]]] = [
    (TreeRing, {"radius": 5}),
    (TreeRing, {"radius": 10}),
    (RingID, {}),
    (ShallowDiffuse, {"radius": 4}),
    (ShallowDiffuse, {"radius": 8}),
]


class Kept:
    """Unmarked pictures and inversions, made once for all settings."""

    def __init__(self) -> None:
        self.pictures: list[Image.Image] = []
        self.latents: dict[tuple[int, float], Tensor] = {}
        self.seen: list[Any] = []  # keeps the lists alive, so that their ids stay their own

    def plain(self, method: InversionMethod, specs: list[ImageSpec]) -> list[Image.Image]:
        if not self.pictures:
            self.pictures = method.paint(specs, torch.cat([method.start(spec) for spec in specs]))
        return self.pictures

    def inverted(
        self, invert: Callable[..., Tensor], images: list[Image.Image], until: float = 1.0
    ) -> Tensor:
        if (id(images), until) not in self.latents:
            self.seen.append(images)
            self.latents[id(images), until] = invert(images, until)
        return self.latents[id(images), until]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vista", help="model")
    parser.add_argument("--images", type=int, default=24, help="pictures a setting")
    parser.add_argument("--steps", type=int, default=25, help="denoising steps")
    parser.add_argument("--inversion", type=int, default=20, help="inversion steps")
    parser.add_argument(
        "--out", type=Path, default=Path("results/inversion_settings.json"), help="JSON to write"
    )
    args = parser.parse_args()

    pipe = load_pipeline(args.model)
    pipe.set_progress_bar_config(disable=True)
    sampling = Sampling(args.steps, default_guidance(args.model))
    rows, kept = [], Kept()
    for kind, options in tqdm(SETTINGS, disable=None):
        method = kind(pipe, sampling, inversion_steps=args.inversion, **options)
        specs = [replace(spec, secret=spec.secret[: method.bits]) for spec in unseen_specs(args.images)]
        secrets = np.stack([spec.secret for spec in specs])
        plain = kept.plain(method, specs)
        images = method.generate_all(specs)
        method.invert = functools.partial(kept.inverted, method.invert)  # type: ignore[method-assign]
        marked, unmarked = method.score(images, secrets), method.score(plain, secrets)
        row: dict[str, Any] = {"method": method.name, **options, "auc": auc(marked, unmarked)}
        row["psnr"] = float(np.mean([psnr(a, b) for a, b in zip(plain, images, strict=True)]))
        row |= {"marked": np.quantile(marked, [0, 0.5]).tolist()}
        row |= {"unmarked": np.quantile(unmarked, [0.5, 1]).tolist()}
        row["above_all_unmarked"] = float((marked > unmarked.max()).mean())
        if method.bits:
            row["bit_accuracy"] = float(((method.decode(images) > 0) == secrets).mean())
        rows.append(row)
        tqdm.write(json.dumps(row))
        config = {
            name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()
        }
        document = provenance("python benchmarks/inversion_settings.py", config) | {"rows": rows}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
