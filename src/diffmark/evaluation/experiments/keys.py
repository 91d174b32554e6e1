"""Key flexibility: one secret for all images against a random one each (the violins and the Hamming plot)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy import stats

from diffmark.evaluation.harness import Harness, Row
from diffmark.metrics import bit_figures


def keys(harness: Harness) -> Iterator[Row]:
    """One secret for all images against a random one each, with every image's bit error rate.

    `pearson_r` and `pearson_p` relate an image's bit error rate to the Hamming distance between its secret and the
    fixed one. Where all images are read without error there is nothing to relate.
    """
    for method in (method for method in harness.methods if method.bits):
        anchor = harness.secrets(method, harness.specs(1, fixed_secret=True))[0]
        for fixed in (True, False):
            specs = harness.clean_specs(method, fixed)
            reading, _ = harness.reading(method, specs)
            if not fixed:  # what was asked for, also of a method that has one key for good
                reading = replace(reading, secrets=np.stack([o.secret[: method.bits] for o in specs]))
            errors = ((reading.margins > 0) != reading.secrets).mean(axis=1)
            row: Row = {"method": method.name, "secrets": "fixed" if fixed else "random"}
            row |= bit_figures(reading.margins, reading.secrets) | {"ber": errors.tolist()}
            if not fixed:
                distance = (reading.secrets != anchor).sum(axis=1)
                row["distance"] = distance.tolist()
                if errors.std() > 0:
                    test = stats.pearsonr(distance, errors)
                    row |= {"pearson_r": float(test.statistic), "pearson_p": float(test.pvalue)}
            yield row
