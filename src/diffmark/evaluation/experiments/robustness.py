"""Robustness: every attack at every strength (the paper's robustness table, and the curves behind it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diffmark.attacks import Attack
from diffmark.baselines.base import Method
from diffmark.evaluation.harness import Harness, Row
from diffmark.evaluation.negatives import negatives
from diffmark.metrics import bit_figures, share
from diffmark.statistics import empirical_threshold

RATE = 1e-3  # exact threshold
EMPIRICAL_RATE = 1e-2  # for methods without one; as many negatives as it needs are at hand for all


def robustness(harness: Harness) -> Iterator[Row]:
    """Every attack at every strength; TPR at FPR 0.1% (exact threshold) and 1% (threshold of the negatives)."""
    for method in harness.methods:
        unmarked = negatives(harness, method).scores
        bound = (
            empirical_threshold(unmarked, EMPIRICAL_RATE) if len(unmarked) >= 10 / EMPIRICAL_RATE else None
        )
        kinds = ("distortion", "regeneration", "adversarial") + (
            () if harness.is_compared(method) else ("everyday",)
        )
        for attack in (attack for attack in harness.attacks.values() if attack.kind in kinds):
            for strength in harness.extent.strengths:
                yield _row(harness, method, attack, strength, bound)


def _row(harness: Harness, method: Method, attack: Attack, strength: float, bound: float | None) -> Row:
    count = harness.attacked_count(method, attack)
    reading, psnr = harness.reading(method, harness.specs(count), attack, strength)
    row: dict[str, Any] = {"method": method.name, "attack": attack.name, "kind": attack.kind, "by": attack.by}
    row |= {"strength": strength, "value": attack.value(strength), "unit": attack.unit, "images": count}
    if method.bits:
        row |= bit_figures(reading.margins, reading.secrets)
    p_values = reading.p_values(method)
    if p_values is not None and method.least_p <= RATE:
        row["tpr"] = share(p_values <= RATE)
    if bound is not None:
        row["tpr_empirical"] = share(reading.scores > bound)
    return row | {"psnr_of_attack": psnr}
