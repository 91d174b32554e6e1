"""Running experiments into a folder: JSON with its provenance, CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.meter import DryMemory, DryMeter
from diffmark.evaluation.studio import Studio, settings
from diffmark.evaluation.tables import spread
from diffmark.provenance import provenance


def run(name: str, lab: Lab, folder: Path, command: str = "") -> list[Row]:
    """Run one experiment and write NAME.json and NAME.csv; `command` is what the user typed for it."""
    _check(name)
    lab.meter.bar.set_description(name)
    rows = list(EXPERIMENTS[name](lab))
    config = {
        "extent": asdict(lab.extent),
        "methods": [m.fingerprint() for m in lab.methods],
        "siblings": list(lab.siblings),
        "attacks": {attack.name: attack.by for attack in lab.attacks.values()},
        "photographs": len(lab.photograph_paths),
        **settings(lab.studio),
    }
    folder.mkdir(parents=True, exist_ok=True)
    document = {**provenance(command, config), "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    write_csv(folder / f"{name}.csv", rows)
    lab.meter.prices.save()
    return rows


def count_work(names: Sequence[str], lab: Lab) -> dict[str, Counter[str]]:
    """What each experiment has still to do, in this order: images to generate, to attack, to read ..."""
    memory = DryMemory(lab.studio.folder, lab.studio.blank)
    studios = {name: _dry(studio, memory) for name, studio in lab.siblings.items()}
    dry = replace(lab, studio=_dry(lab.studio, memory), siblings=studios)
    counts = {}
    for name in names:
        _check(name)
        meter = DryMeter()
        for studio in (dry.studio, *studios.values()):
            studio.meter = meter
        for _ in EXPERIMENTS[name](dry):
            pass
        counts[name] = meter.counts
    return counts


def _dry(studio: Studio, memory: DryMemory) -> Studio:
    dry: Any = replace(studio)
    dry.__dict__["memory"] = memory  # in place of the cached property
    return dry


def _check(name: str) -> None:
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")


def write_csv(path: Path, rows: list[Row]) -> None:
    """One line a row; rates as value, low and high; lists and pictures are left to the JSON file."""
    flat = [_flat(spread(row)) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(flat)


def _flat(row: Row) -> Row:
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and "low" in value:
            flat |= {name if key == "value" else f"{name}_{key}": item for key, item in value.items()}
        elif not isinstance(value, (list, dict)):
            flat[name] = value
    return flat
