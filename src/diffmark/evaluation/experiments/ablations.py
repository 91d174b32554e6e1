"""Ablations: the codecs of configs/ablations side by side, from results/ablations/NAME.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from diffmark.evaluation.harness import Harness, Row

GROUPS = {
    "bridge": ("steps of the bridge", "4"),
    "length": ("bits", "64"),
    "mode": ("injection", "persistent"),
    "no": ("without", "nothing"),
    "with": ("with", "nothing"),
}
"""Of the first word of a name: what is asked, and the answer of the base."""


def ablations(harness: Harness) -> Iterator[Row]:
    """Bit accuracy, worst attack and PSNR of codecs that differ from the base in one thing each, group by group."""
    folder = harness.results / "ablations"
    for head, (question, of_base) in GROUPS.items():
        paths = sorted(folder.glob(f"{head}_*.json"))
        if paths and (folder / "base.json").exists():
            yield {"group": question, "answer": of_base, **_figures(folder / "base.json")}
        for path in paths:
            yield {"group": question, "answer": path.stem.removeprefix(f"{head}_"), **_figures(path)}


def _figures(path: Path) -> Row:
    document = json.loads(path.read_text())
    if "stopped" in document:  # by a guard: a result of its own
        return {"ablation": path.stem, "stopped": document["stopped"]}
    found = document["results"]
    attacks = {name: row["bit_accuracy"] for name, row in found["attacks"].items()}
    clean = attacks.pop("none")
    worst = min(attacks, key=lambda name: attacks[name])
    return {
        "ablation": path.stem,
        "bit_accuracy": clean,
        "mean_attacked": sum(attacks.values()) / len(attacks),
        "worst_attack": worst,
        "worst_attacked": attacks[worst],
        "psnr": found["psnr"]["mean"],
    }
