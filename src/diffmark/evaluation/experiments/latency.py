"""Decode latency, side by side in one run: each method's time as a ratio to the first one's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.evaluation.harness import Harness, Row


def latency(harness: Harness) -> Iterator[Row]:
    """Reading one image and a batch; methods take turns, so that a busy machine is busy for all of them."""
    images = (harness.plain(harness.specs(min(harness.extent.marked, 16))) * 16)[:16]
    for batch in (1, 16):
        rounds = max(harness.extent.timed // batch, 3)
        turns = [method for method in harness.methods if not method.costly]
        turns += [method for method in harness.methods if method.costly]
        for method in turns:
            _read(harness, method, images[:batch])
        seconds: dict[str, list[float]] = {method.name: [] for method in turns}
        for turn in range(rounds):
            for method in turns:
                if not method.costly or turn < 3:  # seconds each: three say enough
                    seconds[method.name].append(_read(harness, method, images[:batch]) / batch)
        reference = float(np.median(seconds[harness.methods[0].name]))
        for method in turns:
            middle = float(np.median(seconds[method.name]))
            row: Row = {"method": method.name, "batch": batch, "seconds_per_image": middle}
            row |= {"ratio": middle / reference, "reference": harness.methods[0].name}
            yield row | {"stages": stages(harness, method, images[:batch])}


def stages(harness: Harness, method: Method, images: list[Image.Image]) -> dict[str, float]:
    """Share of one more reading that each part of the method takes; `rest` is resizing, tests and the like."""
    spent: dict[str, float] = {}

    def timed(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - start

        return call

    with ExitStack() as stack:
        for name, (owner, function) in method.parts().items():
            stack.enter_context(mock.patch.object(owner, function, timed(name, getattr(owner, function))))
        whole = _read(harness, method, images)
    shares = {name: seconds / whole for name, seconds in spent.items()}
    return {**shares, "rest": 1 - sum(shares.values())}


def _read(harness: Harness, method: Method, images: list[Image.Image]) -> float:
    """Seconds to decode, or to score where a method tells presence only."""
    start = time.perf_counter()

    def work() -> None:
        if method.bits:
            method.decode(images)
        else:
            method.score(images, np.zeros((len(images), 1), np.uint8))

    harness.timer.do(f"read by {method.name}", len(images), work, lambda: None)
    return time.perf_counter() - start
