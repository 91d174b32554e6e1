"""Robustness: every attack at every strength (the paper's robustness table, and the curves behind it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from diffmark.attacks import Attack
from diffmark.baselines.base import Method
from diffmark.evaluation.harness import Harness, Row
from diffmark.evaluation.negatives import negatives
from diffmark.evaluation.rows import WAVES
from diffmark.metrics import bit_figures, share
from diffmark.statistics import empirical_threshold

RATES = (1e-3, 1e-2, 1e-6)  # exact thresholds; the first is the operating point
EMPIRICAL_RATE = 1e-2  # where there are ten times more negatives than it needs
Cell = tuple[Method, Attack, float]


def robustness(harness: Harness) -> Iterator[Row]:
    """Every attack at every strength; TPR at exact FPR of 0.1%, 1% and 1e-6, and at 1% of the negatives.

    Cells grow in turns, a few pictures each, so that one that is cut short is no smaller than the others.
    """
    cells = in_turn(harness)
    counts = [harness.attacked_count(method, attack) for method, attack, _ in cells]
    turns = (
        max(-(-n // harness.part(*cell[:2])) for cell, n in zip(cells, counts, strict=True)) if cells else 0
    )
    for turn in range(turns):
        for (method, attack, strength), count in zip(cells, counts, strict=True):
            if not harness.out_of_time:
                harness.make_part(method, turn, count, attack, strength)
    for method in harness.methods:
        unmarked = negatives(harness, method).scores
        enough = len(unmarked) >= 10 / EMPIRICAL_RATE
        bound = empirical_threshold(unmarked, EMPIRICAL_RATE) if enough else None
        for cell in (cell for cell in by_name(cells) if cell[0] is method):
            yield from _row(harness, cell, bound)


def in_turn(harness: Harness) -> list[Cell]:
    """All cells, the paper's attacks first and one strength after the other: half, the ends, what is between.

    However early a run is stopped, the same attacks at the same strengths were made for all methods.
    """
    cells = [
        (method, attack, strength)
        for attack in harness.attacks.values()
        for strength in harness.strengths(attack)
        for method in harness.methods
        if applies(method, attack)
    ]

    def place(cell: Cell) -> tuple[bool, int]:
        strengths = sorted(harness.strengths(cell[1]), key=lambda s: (s != 0.6, s != 1.0, s != 0.2, s))
        return cell[1].name not in WAVES, strengths.index(cell[2])

    return sorted(cells, key=place)


def by_name(cells: list[Cell]) -> list[Cell]:
    """The same in the order of a table."""
    return sorted(cells, key=lambda cell: (cell[1].kind, cell[1].name, cell[2]))


def applies(method: Method, attack: Attack) -> bool:
    """Whether an attack is one on this method: gradients of margins are of the method that has them."""
    return attack.against is None or attack.against == method.name


def _row(harness: Harness, cell: Cell, bound: float | None) -> Iterator[Row]:
    method, attack, strength = cell
    specs = harness.specs(harness.attacked_count(method, attack))
    reading, psnr = harness.reading(method, specs, attack, strength)
    if not len(reading.scores):
        return
    row: dict[str, Any] = {"method": method.name, "attack": attack.name, "kind": attack.kind, "by": attack.by}
    row |= {"strength": strength, "value": attack.value(strength), "unit": attack.unit}
    row |= {"images": len(reading.scores)}
    if method.bits:
        row |= bit_figures(reading.margins, reading.secrets)
    p_values = reading.p_values(method)
    for rate in RATES:
        if p_values is not None and method.least_p <= rate:
            row["tpr" if rate == RATES[0] else f"tpr_{rate:g}"] = share(p_values <= rate)
    if bound is not None:
        row["tpr_empirical"] = share(reading.scores > bound)
    yield row | {"psnr_of_attack": psnr}
