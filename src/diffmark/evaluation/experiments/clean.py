"""Clean detection and quality (the paper's main comparison table)."""

from __future__ import annotations

from collections.abc import Iterator

from diffmark.evaluation.harness import Harness, Row
from diffmark.evaluation.negatives import negatives
from diffmark.evaluation.perception import quality
from diffmark.metrics import bit_figures, detection_figures

MAX_COMPARED = (
    48  # pictures that figures of quality are of, at most: all of them take most of a second a picture
)


def clean(harness: Harness) -> Iterator[Row]:
    """Detection without an attack, and quality against the same seed without a mark; a row a method."""
    for method in harness.methods:
        specs = harness.clean_specs(method)
        reading, _ = harness.reading(method, specs)
        against = negatives(harness, method)
        found = len(reading.scores)
        if not found or not len(against.scores):
            continue
        row: Row = {"method": method.name, "bits": method.bits, "images": found}
        if method.bits:
            row |= bit_figures(reading.margins, reading.secrets)
        known = [p for r in (reading, against) if (p := r.p_values(method)) is not None]
        exact = (known[0], known[1]) if known else None
        row |= detection_figures(reading.scores, against.scores, exact, method.least_p)
        yield row | quality(harness, method, specs[: min(found, MAX_COMPARED)])
