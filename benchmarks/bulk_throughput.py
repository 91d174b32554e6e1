"""Throughput of `diffmark bulk` against the bare decoder: in this process, and with one and two workers on Ray.

    python benchmarks/bulk_throughput.py [--images 512]

Writes results/bulk_throughput.json. A bulk run is timed from its first batch of rows to its last, so that loading
the model and starting Ray, which are given apart, do not count; the bare decoder gets pixels that are in memory.
Images a CPU second counts the CPU time of this process and all that it started: on a machine that does other things
at the same time, it is the figure that can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from diffmark.bulk.run import detect_all
from diffmark.bulk.sources import find
from diffmark.bulk.worker import Settings
from diffmark.detection.latent import Detector
from diffmark.images import read_image
from diffmark.provenance import provenance
from diffmark.vista.paint import painted_scenes

RESULTS = Path(__file__).parents[1] / "results"
DIFFERENT = 32  # pictures; they are saved under many names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    cores = len(os.sched_getaffinity(0))
    config = vars(options) | {"image": "128x128 PNG", "cores": cores, "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        place = make_images(Path(folder) / "images", options.images)
        for row in measured(place, Path(folder), options.workers):
            first = rows[0] if rows else row
            names = ("images_per_second", "images_per_cpu_second")
            rows.append(row | {f"{name}_against_bare": row[name] / first[name] for name in names})
            print(json.dumps(rows[-1]), flush=True)
    document = {**provenance("python benchmarks/bulk_throughput.py", config), "rows": rows}
    (RESULTS / "bulk_throughput.json").write_text(json.dumps(document, indent=1) + "\n")


def make_images(place: Path, count: int) -> Path:
    place.mkdir()
    pictures = list(painted_scenes(min(DIFFERENT, count)))
    for number, picture in zip(range(count), itertools.cycle(pictures)):
        picture.save(place / f"{number:05d}.png")
    return place


def measured(place: Path, folder: Path, workers: list[int]) -> Iterator[dict[str, Any]]:
    yield bare(place)
    for number in [0, *workers]:
        yield timed(place, folder / f"out-{number}", number)


def bare(place: Path) -> dict[str, Any]:
    detector = Detector.from_pretrained("vista-final")
    size = detector.codec.config.image_size
    pictures = [read_image(path).resized(size).pixels() for path in sorted(place.iterdir())]
    batches = [torch.from_numpy(np.stack(pictures[i : i + 8])) for i in range(0, len(pictures), 8)]
    detector.logits(batches[0])
    start, cpu = time.perf_counter(), cpu_seconds()
    for batch in batches:
        detector.logits(batch)
    return {"what": "bare decoder", **rates(len(pictures), start, cpu)}


def rates(images: int, start: float, cpu: float) -> dict[str, float]:
    return {
        "images_per_second": images / (time.perf_counter() - start),
        "images_per_cpu_second": images / (cpu_seconds() - cpu),
    }


def cpu_seconds() -> float:
    """Of this process and its descendants that live: Ray's workers do until the program ends."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def timed(place: Path, out: Path, workers: int) -> dict[str, Any]:
    shards, _ = find(str(place))
    begun = time.perf_counter()
    counts = detect_all(shards, str(out), Settings(), workers=workers)
    first = sum(next(counts).values())
    start, cpu = time.perf_counter(), cpu_seconds()
    rest = sum(sum(count.values()) for count in counts)
    measured = rates(rest, start, cpu)
    assert first + rest == sum(len(shard.names) for shard in shards)
    what = f"bulk, {workers} workers on Ray" if workers else "bulk, in process"
    return {"what": what, **measured, "seconds_to_first_rows": start - begun}


if __name__ == "__main__":
    main()
