"""Decode latency, side by side in one run: each method's time as a ratio to the first one's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from PIL import Image

from diffmark.evaluation.lab import Lab, Row
from diffmark.methods.base import Method


def read(method: Method, images: list[Image.Image]) -> None:
    """Decode, or score where a method tells presence only."""
    if method.bits:
        method.decode(images)
    else:
        method.score(images, np.zeros((len(images), 1), np.uint8))


def latency(lab: Lab) -> Iterator[Row]:
    """A row a method and batch size; methods take turns, so that a busy machine is busy for all of them."""
    images = lab.plain(min(lab.extent.marked, 16))
    images = (images * 16)[:16]
    seconds: dict[tuple[str, int], list[float]] = {}
    for batch in (1, 16):
        for method in lab.methods:
            read(method, images[:batch])  # warm up
        for _ in range(max(lab.extent.timed // batch, 3)):
            for method in lab.methods:
                start = time.perf_counter()
                read(method, images[:batch])
                seconds.setdefault((method.name, batch), []).append((time.perf_counter() - start) / batch)
    for (name, batch), times in seconds.items():
        reference = float(np.median(seconds[lab.methods[0].name, batch]))
        row: Row = {"method": name, "batch": batch, "seconds_per_image": float(np.median(times))}
        yield row | {"ratio": float(np.median(times)) / reference, "reference": lab.methods[0].name}
