"""How long the pixel layer takes, as ratios in one run. The machine should have nothing else to do.

    python benchmarks/pixel_speed.py --pictures DIR --out results/pixel_speed.json

Methods take turns, one thread each, the processor's time is counted, and the median of the rounds is reported:
plain read against rivaGan's decode and against Tree-Ring's inversion on Vista; the whole search of an unmarked
512 px picture against a plain read; marking at 512 px and at 12 megapixels; peak memory of marking and reading 100
megapixels; `diffmark detect` from a cold start.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from pictures import files, give_one_thread  # noqa: E402
from PIL import Image  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.pixel.codec import MarkWarning, PixelCodec  # noqa: E402
from diffmark.provenance import command_line, revision, versions  # noqa: E402

SECRET = "0123456789abcdef"
ROUNDS, COSTLY_ROUNDS = 12, 3
LARGE, HUGE = (4000, 3000), (10_000, 10_000)  # pixels


def readers(pixel: PixelCodec) -> dict[str, tuple[Callable[[Image.Image], Any], int]]:
    """What is timed on an unmarked 512 px picture, and how often."""
    from diffmark.baselines.classic import BlindWatermark, InvisibleWatermark
    from diffmark.baselines.tree_ring import TreeRing
    from diffmark.vista import load_pipeline

    give_one_thread()
    riva, ring = InvisibleWatermark("rivaGan"), TreeRing(load_pipeline())
    others = {"dwtDct": InvisibleWatermark("dwtDct"), "dwtDctSvd": InvisibleWatermark("dwtDctSvd")}
    others["blindWatermark"] = BlindWatermark()
    nothing = np.zeros((1, 1), np.uint8)
    side = 8 * ring.side
    return {
        "pixel, plain": (lambda image: pixel.read(image, search=False), ROUNDS),
        "pixel, whole search": (pixel.read, ROUNDS),
        "rivaGan": (lambda image: riva.decode([image]), COSTLY_ROUNDS),
        **{
            name: (lambda image, method=method: method.decode([image]), ROUNDS)
            for name, method in others.items()
        },
        "Tree-Ring on Vista": (
            lambda image: ring.score([image.resize((side, side))], nothing),
            COSTLY_ROUNDS,
        ),
        "marking 512 px": (lambda image: pixel.embed(image, SECRET), ROUNDS),
    }


def timed(work: Callable[[Image.Image], Any], image: Image.Image) -> float:
    start = time.process_time()
    work(image)
    return time.process_time() - start


def turns(images: list[Image.Image], pixel: PixelCodec) -> dict[str, float]:
    """Median seconds of each."""
    table = readers(pixel)
    spent: dict[str, list[float]] = {name: [] for name in table}
    for work, _ in table.values():
        work(images[0])  # what is loaded at the first reading is not counted
    for turn in tqdm(range(ROUNDS), "turns", disable=None):
        for name, (work, rounds) in table.items():
            if turn < rounds:
                spent[name].append(timed(work, images[turn % len(images)]))
    return {name: float(np.median(values)) for name, values in spent.items()}


def ratios(seconds: dict[str, float]) -> dict[str, float]:
    """The figures that the design asks for."""
    plain = seconds["pixel, plain"]
    return {
        "plain read over rivaGan's decode": plain / seconds["rivaGan"],
        "Tree-Ring's inversion over a plain read": seconds["Tree-Ring on Vista"] / plain,
        "whole search over a plain read": seconds["pixel, whole search"] / plain,
    }


MEMORY = """
import resource, sys, warnings
from PIL import Image
from diffmark.pixel.codec import PixelCodec
warnings.simplefilter("ignore")
Image.MAX_IMAGE_PIXELS = None
image = Image.open(sys.argv[1]).resize((int(sys.argv[2]), int(sys.argv[3])))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
codec = PixelCodec()
codec.read(codec.embed(image, sys.argv[4]).image)
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory(path: Path) -> dict[str, float]:
    """Peak of a process of its own that marks and reads 100 megapixels, in megabytes."""
    arguments = [sys.executable, "-c", MEMORY, str(path), *map(str, HUGE), SECRET]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=dict(os.environ))
    before, after = (int(value) / 1024 for value in done.stdout.split())
    return {
        "with_the_picture_alone_mb": before,
        "peak_mb": after,
        "picture_mb": 3 * HUGE[0] * HUGE[1] / 2**20,
    }


def cold_start(image: Image.Image, copies: int) -> float:
    """Seconds of the wall clock of `diffmark detect` on so many files, the least of three."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{number}.png" for number in range(copies)]
        for name in names:
            image.save(name)
        found = []
        for _ in range(3):
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "diffmark", "detect", *names], capture_output=True)
            found.append(time.perf_counter() - start)
            if done.returncode not in (0, 1):
                raise RuntimeError(f"diffmark detect failed: {done.stderr.decode()[-500:]}")
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/pixel_speed.json"))
    options = parser.parse_args()
    started = revision()
    warnings.simplefilter("ignore", MarkWarning)
    load = os.getloadavg()
    pixel = PixelCodec()
    paths = files(options.pictures, "test")[: options.count]
    images = [Image.open(path).convert("RGB").resize((512, 512)) for path in paths]
    seconds = turns(images, pixel)
    large = images[0].resize(LARGE, Image.Resampling.BICUBIC)
    seconds["marking 12 Mpx"] = timed(lambda image: pixel.embed(image, SECRET), large)
    marked = pixel.embed(images[0], SECRET).image
    found = {
        "seconds": seconds,
        "ratios": ratios(seconds),
        "memory_100_mpx": memory(paths[0]),
        "cold_start_seconds": {
            "1 marked file": cold_start(marked, 1),
            "20 marked files": cold_start(marked, 20),
        },
        "load_average_before_and_after": [load[0], os.getloadavg()[0]],
    }
    head = {"command": command_line(), "versions": versions(), "revision": started}
    options.out.write_text(json.dumps({**head, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
