"""Identification scaling: the decoder's own logits searched among up to 1e8 keys, through the registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diffmark.attacks import ATTACKS
from diffmark.evaluation.harness import Harness, Row
from diffmark.statistics import to_logits

if TYPE_CHECKING:
    from diffmark.registry.experiment import Decoded

CASES = {
    "clean": None,
    "JPEG 50": ("jpeg", 0.5),
    "JPEG 10": ("jpeg", 1.0),
    "noise 0.05": ("noise", 0.5),
    "noise 0.1": ("noise", 1.0),
    "crop to 75%": ("resized_crop", 0.5),
    "crop to 50%": ("resized_crop", 1.0),
}  # the middle and the end of each range
LARGE, TRIALS, LARGE_TRIALS = 10**7, 5, 1


def identification(harness: Harness) -> Iterator[Row]:
    """Closed-set top-1, and open-set naming at a family-wise error of 1e-6, against the number of keys."""
    from diffmark.registry.experiment import Decoded

    for method in (method for method in harness.methods if method.bits == 64):
        for case, attack in CASES.items():
            name, hardness = attack or (None, 0.0)
            specs = harness.specs(harness.extent.attacked) if name else harness.clean_specs(method)
            reading, _ = harness.reading(method, specs, ATTACKS[name] if name else None, hardness)
            logits = to_logits(reading.margins)
            decoded = Decoded(case, logits, reading.secrets)
            for size in harness.extent.keys:
                yield from (
                    {"method": method.name, "case": case} | row for row in _searched(harness, decoded, size)
                )


def _searched(harness: Harness, decoded: Decoded, size: int) -> list[Row]:
    from diffmark.registry.experiment import run

    trials = LARGE_TRIALS if size >= LARGE else TRIALS
    what, count = f"search among {size:.0e} keys", len(decoded.logits) * trials
    return harness.timer.do(what, count, lambda: list(run(decoded, [size], trials)), lambda: [])
