"""Robustness: every attack at every strength (the paper's robustness table, and the curves behind it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diffmark.attacks import Attack
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, share
from diffmark.evaluation.negatives import negatives
from diffmark.methods.base import Method
from diffmark.statistics import empirical_threshold, match_threshold

RATE = 1e-3  # exact threshold
EMPIRICAL_RATE = 1e-2  # for methods without one; as many negatives as it needs are at hand for all


def robustness(lab: Lab) -> Iterator[Row]:
    """Every attack at every strength; TPR at FPR 0.1% (exact threshold) and 1% (threshold of the negatives)."""
    for method in lab.methods:
        unmarked = negatives(lab, method).scores
        bound = (
            empirical_threshold(unmarked, EMPIRICAL_RATE) if len(unmarked) >= 10 / EMPIRICAL_RATE else None
        )
        # What everybody's pictures go through is measured where it costs minutes, not hours.
        kinds = ("distortion", "regeneration", "adversarial") + (() if method.costly else ("everyday",))
        for attack in (attack for attack in lab.attacks.values() if attack.kind in kinds):
            for strength in lab.extent.strengths:
                yield _row(lab, method, attack, strength, bound)


def _row(lab: Lab, method: Method, attack: Attack, strength: float, bound: float | None) -> Row:
    count = lab.extent.costly_attacked if method.costly else lab.extent.attacked
    if attack.kind == "adversarial":
        first = method is lab.methods[0]
        count = min(count, lab.extent.adversarial if first else lab.extent.compared_adversarial)
    reading, psnr = lab.reading(method, lab.orders(count), attack, strength)
    row: dict[str, Any] = {"method": method.name, "attack": attack.name, "kind": attack.kind, "by": attack.by}
    row |= {"strength": strength, "value": attack.value(strength), "unit": attack.unit, "images": count}
    if method.bits:
        row |= bit_figures(reading.margins, reading.secrets)
    if method.counts and 2.0**-method.bits <= RATE:
        row["tpr"] = share(reading.scores >= match_threshold(method.bits, RATE))
    if bound is not None:
        row["tpr_empirical"] = share(reading.scores > bound)
    return row | {"psnr": psnr}
