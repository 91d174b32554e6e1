"""False positives: what the test says of images that carry no mark, and whether their bits are fair coins."""

from __future__ import annotations

from collections.abc import Iterator

from diffmark.baselines.base import Method
from diffmark.evaluation.harness import Harness, Reading, Row
from diffmark.evaluation.negatives import sources, unmarked
from diffmark.metrics import RATES, bias_figures, share
from diffmark.statistics import match_threshold


def false_positives(harness: Harness) -> Iterator[Row]:
    """Unmarked images taken for marked at the exact thresholds, by source, clean and attacked.

    The rates hold for secrets drawn at random. Bits that lean to one side, or that go together, make them differ
    between secrets: `largest_lean` and `largest_correlation` are to be held against what chance alone would show.
    """
    for method in (method for method in harness.methods if method.counts):
        every = []
        for source in sources(harness):
            for attacked in (False, True):
                reading = unmarked(harness, method, source, attacked)
                every.append(reading)
                yield {"method": method.name, "source": source, "attacked": attacked} | _figures(
                    method, reading
                )
        yield {"method": method.name, "source": "all", "attacked": None} | _figures(
            method, Reading.joined(every)
        )


def _figures(method: Method, reading: Reading) -> Row:
    row: Row = {"images": len(reading.scores), "mean_matches": float(reading.scores.mean())}
    for rate in (rate for rate in RATES if 2.0**-method.bits <= rate):
        row[f"fpr_{rate:g}"] = share(reading.scores >= match_threshold(method.bits, rate))
    return row | bias_figures(reading.margins)
