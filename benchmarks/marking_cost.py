"""What marking costs beside a generation of 50 steps on Vista.

    python benchmarks/marking_cost.py --out results/marking_cost.json

Inside each marked run the processor's time that is spent in marking is counted apart: opening the context with a
codec of its own, the pixel layer's fit, the reading back, delta and its shares. So a ratio is of one run on one
thread. What a process does once, deriving a key's patterns, is counted beside. The machine should have nothing
else to do; ratios of processor time hardly mind if it has. What fewer rounds of fitting cost the mark is measured
by `pipeline_mark.py`.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
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
from tqdm import tqdm  # noqa: E402

import diffmark  # noqa: E402
from diffmark.mark.context import watermark  # noqa: E402
from diffmark.mark.decoding import PixelLayer  # noqa: E402
from diffmark.mark.steps import WatermarkCallback  # noqa: E402
from diffmark.pixel.codec import MarkWarning, PixelCodec  # noqa: E402
from diffmark.pixel.layout import layout_of  # noqa: E402
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
def counted() -> Iterator[dict[str, float]]:
    """Seconds of the processor in each part of marking while this is open."""
    spent = dict.fromkeys(PARTS, 0.0)

    def counting(name: str, plain: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return plain(*args, **kwargs)
            finally:
                spent[name] += time.process_time() - start

        return run

    with ExitStack() as stack:
        for name, (owner, method) in PARTS.items():
            stack.enter_context(patch.object(owner, method, counting(name, getattr(owner, method))))
        yield spent


def patterns() -> float:
    """Seconds of the processor that a key's patterns take, once in a process."""
    cover = np.full((256, 256, 3), 128, np.uint8)
    seconds = []
    for _ in range(2):  # the second time they are there
        start = time.process_time()
        PixelCodec().residual(cover, 0, rounds=0)
        seconds.append(time.process_time() - start)
    assert layout_of.cache_info().currsize == 1
    return seconds[0] - seconds[1]


def measured(pipe: Any, codec: Any, batch: int, rounds: int, steps: int, runs: int) -> dict[str, Any]:
    rows = []
    for run in tqdm(range(runs), f"batch {batch}, {rounds} rounds", disable=None):
        prompts = [PROMPTS[(run + n) % len(PROMPTS)] for n in range(batch)]
        secrets = random_secrets(batch)
        noise = [torch.Generator().manual_seed(100 * run + n) for n in range(batch)]
        with counted() as spent:
            start = time.process_time()
            with watermark(pipe, codec, secrets, pixel=PixelCodec(), rounds=rounds):
                opened = time.process_time() - start
                pipe(prompts, num_inference_steps=steps, guidance_scale=4.0, generator=noise)
            total = time.process_time() - start
        spent["context"] = opened
        rows.append({**spent, "rest": total - sum(spent.values())})
    mean = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    marking = sum(value for name, value in mean.items() if name != "rest")
    return {
        "batch": batch,
        "rounds": rounds,
        "seconds": mean,
        "marking_over_generation": marking / mean["rest"],
        "generation_layer_over_generation": (mean["shares of delta"] + mean["delta"]) / mean["rest"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 1, ROUNDS])
    parser.add_argument("--out", type=Path, default=Path("results/marking_cost.json"))
    options = parser.parse_args()
    started = revision()
    warnings.simplefilter("ignore", MarkWarning)
    pipe, codec = load_pipeline("vista"), diffmark.Codec.from_pretrained("vista")
    pipe.set_progress_bar_config(disable=True)
    pictures.give_one_thread()
    head = {"command": command_line(), "versions": versions(), "revision": started}
    config = {"model": "vista", "steps": options.steps, "guidance": 4.0, "runs": options.runs, "threads": 1}
    config["seconds_of_patterns_once"] = patterns()
    rows = []
    for batch in options.batches:
        for rounds in options.rounds:  # what is done is kept if a run is cut off
            rows.append(measured(pipe, codec, batch, rounds, options.steps, options.runs))
            options.out.write_text(json.dumps({**head, "config": config, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
