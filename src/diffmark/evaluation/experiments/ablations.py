"""Ablations: the measured codecs of configs/ablations side by side, from results/ablations/NAME.json."""

from __future__ import annotations

import json
from collections.abc import Iterator

from diffmark.evaluation.lab import Lab, Row

GROUPS = {
    "bridge": "steps of the bridge",
    "length": "bits",
    "mode": "injection",
    "no": "without",
    "frequency": "loss",
}


def ablations(lab: Lab) -> Iterator[Row]:
    """Bit accuracy, worst attack and PSNR of codecs that differ in one thing each, as far as measured."""
    for path in sorted((lab.results / "ablations").glob("*.json")):
        found = json.loads(path.read_text())["results"]
        attacks = {name: row["bit_accuracy"] for name, row in found["attacks"].items()}
        worst = min(attacks, key=lambda name: attacks[name])
        head = path.stem.split("_")[0]
        yield {
            "ablation": path.stem,
            "group": GROUPS.get(head, head),
            "bit_accuracy": attacks["none"],
            "mean_attacked": sum(attacks.values()) / len(attacks),
            "worst_attack": worst,
            "worst_attacked": attacks[worst],
            "psnr": found["psnr"]["mean"],
        }
