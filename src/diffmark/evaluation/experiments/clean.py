"""Clean detection and quality (the paper's main comparison table)."""

from __future__ import annotations

from collections.abc import Iterator

from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, detection_figures
from diffmark.evaluation.negatives import negatives
from diffmark.evaluation.perception import quality


def clean(lab: Lab) -> Iterator[Row]:
    """Detection without an attack, and quality against the same seed without a mark; a row a method."""
    for method in lab.methods:
        orders = lab.clean_orders(method)
        reading, _ = lab.reading(method, orders)
        row: Row = {"method": method.name, "bits": method.bits, "images": len(orders)}
        if method.bits:
            row |= bit_figures(reading.margins, reading.secrets)
        against = negatives(lab, method)
        known = [p for r in (reading, against) if (p := r.p_values(method)) is not None]
        exact = (known[0], known[1]) if known else None
        row |= detection_figures(reading.scores, against.scores, exact, method.least_p)
        yield row | quality(lab, method, orders)
