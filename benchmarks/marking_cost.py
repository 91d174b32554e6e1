"""What marking costs beside a generation of 50 steps on Vista, and what fewer rounds of fitting cost the mark.

    python benchmarks/marking_cost.py --out results/marking_cost.json

Inside each marked run the processor's time that is spent in marking is counted apart (the pixel layer's fit, the
reading back, the shares of delta), so that a ratio is of one run on one thread. The pictures are then sent through
JPEG 10 and read. The machine should have nothing else to do; ratios of processor time hardly mind if it has.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import io  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from tqdm import tqdm  # noqa: E402

import diffmark  # noqa: E402
from diffmark.mark.context import watermark  # noqa: E402
from diffmark.mark.decoding import PixelLayer  # noqa: E402
from diffmark.mark.steps import WatermarkCallback  # noqa: E402
from diffmark.pixel.codec import MarkWarning, PixelCodec  # noqa: E402
from diffmark.pixel.visibility import Visibility  # noqa: E402
from diffmark.pixel.writer import ROUNDS  # noqa: E402
from diffmark.provenance import command_line, revision, versions  # noqa: E402
from diffmark.secret import random_secrets  # noqa: E402
from diffmark.vista import load_pipeline  # noqa: E402

PROMPTS = (
    "snowy mountains at dawn above a lake",
    "desert dunes at sunset above a sandy beach",
    "green hills at noon under a cloudy sky, a house",
    "rocky mountains at night above a pine forest, the moon",
)
PARTS = {
    "pixel layer": (PixelLayer, "mark"),
    "reading back pixels": (PixelLayer, "end"),
    "shares of delta": (WatermarkCallback, "callback_fn"),
    "delta": (WatermarkCallback, "prepare"),
}


@contextmanager
def counted() -> Iterator[tuple[dict[str, float], list[Any]]]:
    """Seconds of the processor in each part of marking while this is open, and the pictures without their mark."""
    spent, covers = dict.fromkeys(PARTS, 0.0), []

    def counting(name: str, plain: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            if name == "pixel layer":
                covers.append(args[1].clone())
            start = time.process_time()
            try:
                return plain(*args, **kwargs)
            finally:
                spent[name] += time.process_time() - start

        return run

    with ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(patch.object(owner, method, counting(name, getattr(owner, method))))
        yield spent, covers


def matches_after_jpeg(codec: PixelCodec, image: Image.Image, secret: np.ndarray, quality: int) -> int:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    margins = codec.read(buffer.getvalue(), search=False).margins
    return int(((margins > 0) == (secret > 0)).sum())


def measured(pipe: Any, codec: Any, batch: int, rounds: int, steps: int, runs: int) -> dict[str, Any]:
    pixel, rows, bits, qualities = PixelCodec(), [], [], []
    for run in tqdm(range(runs), f"batch {batch}, {rounds} rounds", disable=None):
        prompts = [PROMPTS[(run + n) % len(PROMPTS)] for n in range(batch)]
        secrets = random_secrets(batch)
        noise = [torch.Generator().manual_seed(100 * run + n) for n in range(batch)]
        with counted() as (spent, covers), watermark(pipe, codec, secrets, pixel=pixel, rounds=rounds):
            start = time.process_time()
            images = pipe(prompts, num_inference_steps=steps, guidance_scale=4.0, generator=noise).images
            total = time.process_time() - start
        rows.append({**spent, "rest": total - sum(spent.values())})
        for cover, image, secret in zip(covers[0], images, secrets, strict=True):
            bits.append([matches_after_jpeg(pixel, image, secret, q) for q in (50, 10)])
            levels = (cover / 2 + 0.5).clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
            qualities.append(Visibility(Image.fromarray(levels)).ssimulacra2(image))
    mean = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    marking = sum(value for name, value in mean.items() if name != "rest")
    return {
        "batch": batch,
        "rounds": rounds,
        "seconds": mean,
        "marking_over_generation": marking / mean["rest"],
        "generation_layer_over_generation": (mean["shares of delta"] + mean["delta"]) / mean["rest"],
        "matches_of_64_after_jpeg_50": float(np.mean([row[0] for row in bits])),
        "matches_of_64_after_jpeg_10": float(np.mean([row[1] for row in bits])),
        "ssimulacra2": float(np.mean(qualities)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, nargs="+", default=[ROUNDS, 1, 0])
    parser.add_argument("--out", type=Path, default=Path("results/marking_cost.json"))
    options = parser.parse_args()
    started = revision()
    warnings.simplefilter("ignore", MarkWarning)
    pipe, codec = load_pipeline("vista"), diffmark.Codec.from_pretrained("vista")
    pipe.set_progress_bar_config(disable=True)
    pictures.give_one_thread()
    head = {"command": command_line(), "versions": versions(), "revision": started}
    config = {"model": "vista", "steps": options.steps, "guidance": 4.0, "runs": options.runs, "threads": 1}
    rows = []
    for batch in options.batches:
        for rounds in options.rounds:  # what is done is kept if a run is cut off
            rows.append(measured(pipe, codec, batch, rounds, options.steps, options.runs))
            options.out.write_text(json.dumps({**head, "config": config, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
