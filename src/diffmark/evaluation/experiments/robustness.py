"""Robustness: every attack at every strength (the paper's robustness table, and the curves behind it)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, psnr
from diffmark.statistics import clopper_pearson, match_threshold

RATE = 1e-3


def robustness(lab: Lab) -> Iterator[Row]:
    """A row a method, attack and strength; TPR at FPR 1e-3 with the exact threshold of the method's bits."""
    for method in (method for method in lab.methods if method.bits):
        threshold = match_threshold(method.bits, RATE)
        for attack in lab.attacks.values():
            count = lab.extent.adversarial if attack.kind == "adversarial" else lab.extent.attacked
            images, secrets = lab.marked(method, count), lab.secrets(method, count)
            for strength in lab.extent.strengths:
                attacked = attack.on_all(images, strength)
                margins = method.decode(attacked)
                hits = int((((margins > 0) == secrets).sum(axis=1) >= threshold).sum())
                low, high = clopper_pearson(hits, count)
                row: Row = {"method": method.name, "attack": attack.name, "kind": attack.kind}
                row |= {"strength": strength, "value": attack.value(strength), "unit": attack.unit}
                row |= bit_figures(margins, secrets)
                row |= {"tpr": hits / count, "tpr_low": low, "tpr_high": high, "fpr": RATE}
                if attacked[0].size == images[0].size:
                    row["psnr"] = float(np.mean([psnr(a, b) for a, b in zip(images, attacked, strict=True)]))
                yield row
