"""Throughput of audits against the bare decoder: in this process, and with one and two workers on Ray.

    python benchmarks/audit_throughput.py [--images 512]

Writes results/audit_throughput.json. An audit is timed from its first batch of rows to its last, so that loading
the model and starting Ray, which are given apart, do not count; the bare decoder gets pixels that are in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffmark.audit.run import audit
from diffmark.audit.sources import find
from diffmark.audit.worker import Settings
from diffmark.detection import Detector
from diffmark.evaluation.studio import painted_scenes
from diffmark.images import read_image
from diffmark.provenance import provenance

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
            rows.append(
                row | {"against_bare": row["images_per_second"] / (rows or [row])[0]["images_per_second"]}
            )
            print(json.dumps(rows[-1]), flush=True)
    document = {**provenance("python benchmarks/audit_throughput.py", config), "rows": rows}
    (RESULTS / "audit_throughput.json").write_text(json.dumps(document, indent=1) + "\n")


def make_images(place: Path, count: int) -> Path:
    place.mkdir()
    pictures = list(painted_scenes(min(DIFFERENT, count)))
    for number, picture in zip(range(count), itertools.cycle(pictures)):
        picture.save(place / f"{number:05d}.png")
    return place


def measured(place: Path, folder: Path, workers: list[int]) -> Iterator[dict[str, Any]]:
    yield bare(place)
    for number in [0, *workers]:
        yield audited(place, folder / f"out-{number}", number)


def bare(place: Path) -> dict[str, Any]:
    detector = Detector.from_pretrained("vista")
    size = detector.codec.config.image_size
    pictures = [read_image(path).resized(size).pixels() for path in sorted(place.iterdir())]
    batches = [torch.from_numpy(np.stack(pictures[i : i + 8])) for i in range(0, len(pictures), 8)]
    detector.logits(batches[0])
    start, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        detector.logits(batch)
    seconds = time.perf_counter() - start
    per_cpu = len(pictures) / (time.process_time() - cpu)
    return {
        "what": "bare decoder",
        "images_per_second": len(pictures) / seconds,
        "images_per_cpu_second": per_cpu,
    }


def audited(place: Path, out: Path, workers: int) -> dict[str, Any]:
    shards, _ = find(str(place))
    begun = time.perf_counter()
    counts = audit(shards, str(out), Settings(), workers=workers)
    first = sum(next(counts).values())
    start, cpu = time.perf_counter(), time.process_time()
    rest = sum(sum(count.values()) for count in counts)
    seconds = time.perf_counter() - start
    assert first + rest == sum(len(shard.names) for shard in shards)
    row = {
        "what": f"audit, {workers} workers on Ray" if workers else "audit, in process",
        "images_per_second": rest / seconds,
        "seconds_to_first_rows": start - begun,
    }
    return row if workers else row | {"images_per_cpu_second": rest / (time.process_time() - cpu)}


if __name__ == "__main__":
    main()
