"""What work there is and what it costs: counted beforehand by a dry run, timed while it is done.

Experiments hand all that takes time to a timer. A `WorkTimer` does it, times it and moves the progress bar. A
`WorkCounter` does nothing but count: a run of the experiments with it gives the whole work before any is done.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image
from tqdm import tqdm

from diffmark.evaluation.cache import Arrays, Cache, Recipe

T = TypeVar("T")
GUESSED_SECONDS = 0.1  # CPU seconds an item, for work that was never timed


@dataclass
class Cost:
    """What was spent on one kind of work so far."""

    items: int = 0
    cpu: float = 0.0
    wall: float = 0.0

    @property
    def each(self) -> float:
        return self.cpu / self.items if self.items else GUESSED_SECONDS


class Costs(dict[str, Cost]):
    """Times of earlier runs, kept in a file."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.path = path
        if path is not None and path.exists():
            self.update({name: Cost(**values) for name, values in json.loads(path.read_text()).items()})

    def each(self, what: str) -> float:
        return self.get(what, Cost()).each

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({name: vars(cost) for name, cost in self.items()}, indent=1))
        os.replace(partial, self.path)


class WorkTimer:
    """Does the work and times it."""

    def __init__(self, costs: Costs | None = None, seconds: float | None = None) -> None:
        self.costs = costs if costs is not None else Costs()
        self.bar = tqdm(
            total=seconds and round(seconds),
            unit="s",
            disable=None if seconds else True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed} gone, {remaining} left{postfix}",
        )
        self._inside = False

    def do(self, what: str, count: int, work: Callable[[], T], blank: Callable[[], T]) -> T:
        """The outcome of `work` on `count` items; `blank` gives something of its form."""
        if self._inside:  # part of work that is already on the clock
            return work()
        self._inside = True
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            done = work()
        finally:
            self._inside = False
        cost = self.costs.setdefault(what, Cost())
        cost.items += count
        cost.cpu += time.process_time() - cpu
        cost.wall += time.perf_counter() - wall
        self.bar.set_postfix_str(what, refresh=False)
        self.bar.update(cost.each * count)
        return done

    def close(self) -> None:
        self.bar.close()
        self.costs.save()


class WorkCounter(WorkTimer):
    """Counts the work and does none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def do(self, what: str, count: int, work: Callable[[], T], blank: Callable[[], T]) -> T:
        self.counts[what] += count
        return blank()

    def cost(self, costs: Costs) -> float:
        """CPU seconds."""
        return sum(count * costs.each(what) for what, count in self.counts.items())


class DryCache(Cache):
    """Knows what is kept already, and takes note of what would be."""

    def __init__(self, folder: Path, blank: Image.Image) -> None:
        super().__init__(folder)
        self.blank = blank
        self._images: dict[Path, Image.Image] = {}
        self._arrays: dict[Path, Arrays] = {}

    def has(self, recipe: Recipe, suffix: str) -> bool:
        path = self._path(recipe, suffix)
        return path in self._images or path in self._arrays or path.exists()

    def image(self, recipe: Recipe) -> Image.Image:
        return self._images.get(self._path(recipe, "png"), self.blank)

    def keep_image(self, recipe: Recipe, image: Image.Image) -> None:
        self._images[self._path(recipe, "png")] = image

    def arrays(self, recipe: Recipe) -> Arrays:
        found = self._arrays.get(self._path(recipe, "npz"))
        return super().arrays(recipe) if found is None else found

    def keep_arrays(self, recipe: Recipe, arrays: Arrays) -> None:
        self._arrays[self._path(recipe, "npz")] = arrays


def estimate(counts: dict[str, Counter[str]], costs: Costs) -> list[dict[str, Any]]:
    """A row an experiment: CPU hours on one core, and what most of them go into."""
    rows = []
    for name, counted in counts.items():
        spent = {what: count * costs.each(what) for what, count in counted.items()}
        largest = max(spent, key=lambda what: spent[what], default=None)
        row: dict[str, Any] = {"experiment": name, "cpu_hours": round(sum(spent.values()) / 3600, 3)}
        if largest is not None:
            row |= {
                "mostly": f"{counted[largest]} x {largest}",
                "seconds_each": round(costs.each(largest), 4),
            }
        row["never_timed"] = sorted(what for what in counted if what not in costs)
        rows.append(row)
    return rows
