"""How well the fast estimate of SSIMULACRA2 agrees with the real metric, and its weights fitted anew.

    python benchmarks/pixel_visibility.py --pictures DIR DIR --out results/pixel_visibility.json

Pictures of the tune part are marked at several qualities; the weights are fitted to the real metric by non-negative
least squares. Pictures of the test part are marked as by default and at the same qualities: only they are reported
on, with the weights that ship.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from pictures import files  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_robustness import visibility  # noqa: E402
from scipy.optimize import nnls  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.pixel.codec import MarkWarning, PixelCodec  # noqa: E402
from diffmark.pixel.visibility import EXPONENT, WEIGHTS, Visibility  # noqa: E402
from diffmark.provenance import command_line, revision, versions  # noqa: E402

QUALITIES = (None, 75.0, 92.0)
SIDE = 512


def samples(folders: list[Path], part: str, count: int, seed: int) -> list[dict[str, Any]]:
    """The estimate's errors and the real metrics of marked pictures."""
    codec, rng, found = PixelCodec(), np.random.default_rng(seed), []
    paths = [path for folder in folders for path in files(folder, part)]
    for index in tqdm(rng.permutation(len(paths))[:count], part):
        with Image.open(paths[index]) as opened:
            cover = ImageOps.fit(opened.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
        compare, secret = Visibility(cover), rng.integers(2, size=codec.length, dtype=np.uint8)
        for quality in QUALITIES:
            marked = codec.embed(cover, secret, quality).image
            real = visibility(cover, marked)
            found.append(
                {
                    "errors": compare.errors(marked),
                    "estimate": compare.ssimulacra2(marked),
                    "quality": quality,
                    **real,
                }
            )
    return found


def fitted(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Weights that explain the real metric best, each relative to its size."""
    errors = np.array([[row["errors"][place] for place in WEIGHTS] for row in rows])
    loss = np.array([((100 - row["ssimulacra2"]) / 10) ** (1 / EXPONENT) for row in rows])
    weights, _ = nnls(errors / loss[:, None], np.ones(len(loss)))
    return {
        f"{channel}, {scale}": round(float(w), 2)
        for (channel, scale), w in zip(WEIGHTS, weights, strict=True)
    }


def agreement(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of the estimate with the real metric."""
    estimate, real = (np.array([row[name] for row in rows]) for name in ("estimate", "ssimulacra2"))
    return {
        "pictures": len(rows),
        "mean_ssimulacra2": round(float(real.mean()), 2),
        "bias": round(float((estimate - real).mean()), 3),
        "standard_deviation": round(float((estimate - real).std()), 3),
        "largest_error": round(float(np.abs(estimate - real).max()), 3),
        "correlation": round(float(np.corrcoef(estimate, real)[0, 1]), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, nargs="+", required=True, help="folders")
    parser.add_argument("--count", type=int, default=32, help="pictures of each part")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--out", type=Path, default=Path("results/pixel_visibility.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", MarkWarning)
    tune, test = (samples(options.pictures, part, options.count, options.seed) for part in ("tune", "test"))
    names = {None: "default", **{quality: f"quality {quality:g}" for quality in QUALITIES if quality}}
    found = {
        "weights_fitted_on_tune": fitted(tune),
        "test": agreement(test),
        **{
            f"test, {name}": agreement([row for row in test if row["quality"] == quality])
            for quality, name in names.items()
        },
    }
    config = {"folders": [folder.name for folder in options.pictures], "count": options.count}
    head = {"command": command_line(), "config": config, "seed": options.seed, "versions": versions()}
    options.out.write_text(json.dumps({**head, "revision": revision(), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
