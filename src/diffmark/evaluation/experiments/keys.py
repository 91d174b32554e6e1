"""Key flexibility: one secret for all images against a random one each (the violins and the Hamming plot)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures
from diffmark.evaluation.studio import unseen_orders


def keys(lab: Lab) -> Iterator[Row]:
    """Two rows a method, with every image's bit error rate; the random one tells if errors follow the distance.

    `pearson_r` and `pearson_p` relate an image's bit error rate to the Hamming distance between its secret and the
    fixed one. Where all images are read without error there is nothing to relate.
    """
    count = lab.extent.marked
    for method in (method for method in lab.methods if method.bits):
        for fixed in (True, False):
            orders = unseen_orders(count, first=200_000, fixed_secret=fixed)
            secrets = np.stack([order.secret[: method.bits] for order in orders])
            margins = method.decode([lab.studio.marked(method, order) for order in orders])
            errors = ((margins > 0) != secrets).mean(axis=1)
            row: Row = {"method": method.name, "secrets": "fixed" if fixed else "random"}
            row |= bit_figures(margins, secrets) | {"ber": errors.tolist()}
            if fixed:
                anchor = secrets[0]
            elif errors.std() > 0:
                distance = (secrets != anchor).sum(axis=1)
                test = stats.pearsonr(distance, errors)
                row |= {"pearson_r": float(test.statistic), "pearson_p": float(test.pvalue)}
                row["distance"] = distance.tolist()
            yield row
