"""Running experiments into a folder: JSON with its provenance, CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.studio import settings
from diffmark.provenance import provenance


def run(name: str, lab: Lab, folder: Path) -> list[Row]:
    """Run one experiment and write NAME.json and NAME.csv."""
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    rows = list(EXPERIMENTS[name](lab))
    config = {
        "extent": asdict(lab.extent),
        "methods": [m.fingerprint() for m in lab.methods],
        **settings(lab.studio),
    }
    folder.mkdir(parents=True, exist_ok=True)
    document = {**provenance(f"diffmark evaluate {name}", config), "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    write_csv(folder / f"{name}.csv", rows)
    return rows


def write_csv(path: Path, rows: list[Row]) -> None:
    """One line a row; nested values as JSON, lists left to the JSON file."""
    kept = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
    columns = list(dict.fromkeys(name for row in kept for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in kept:
            writer.writerow({k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()})
