"""Decode latency, side by side in one run: each method's time as a ratio to the first one's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from PIL import Image

from diffmark.evaluation.lab import Lab, Row
from diffmark.methods.base import Method


def latency(lab: Lab) -> Iterator[Row]:
    """Reading one image and a batch; methods take turns, so that a busy machine is busy for all of them."""
    images = (lab.plain(lab.orders(min(lab.extent.marked, 16))) * 16)[:16]
    for batch in (1, 16):
        rounds = max(lab.extent.timed // batch, 3)
        turns = [method for method in lab.methods if not method.costly]
        turns += [method for method in lab.methods if method.costly]
        for method in turns:
            _read(lab, method, images[:batch])
        seconds: dict[str, list[float]] = {method.name: [] for method in turns}
        for turn in range(rounds):
            for method in turns:
                if not method.costly or turn < 3:  # seconds each: three say enough
                    seconds[method.name].append(_read(lab, method, images[:batch]) / batch)
        reference = float(np.median(seconds[lab.methods[0].name]))
        for name, times in seconds.items():
            row: Row = {"method": name, "batch": batch, "seconds_per_image": float(np.median(times))}
            yield row | {"ratio": float(np.median(times)) / reference, "reference": lab.methods[0].name}


def _read(lab: Lab, method: Method, images: list[Image.Image]) -> float:
    """Seconds to decode, or to score where a method tells presence only."""
    start = time.perf_counter()

    def work() -> None:
        if method.bits:
            method.decode(images)
        else:
            method.score(images, np.zeros((len(images), 1), np.uint8))

    lab.meter.do(f"read by {method.name}", len(images), work, lambda: None)
    return time.perf_counter() - start
