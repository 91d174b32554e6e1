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
from diffmark.evaluation.harness import Harness, Row
from diffmark.evaluation.image_model import ImageModel, settings
from diffmark.evaluation.names import check_experiments
from diffmark.evaluation.tables import spread
from diffmark.evaluation.timing import DryCache, WorkCounter
from diffmark.provenance import provenance


def run(name: str, harness: Harness, folder: Path, begun: dict[str, Any] | None = None) -> list[Row]:
    """Run one experiment and write NAME.json and NAME.csv.

    `begun` is the provenance of the run at its start: the command that was typed, versions, the revision.
    """
    check_experiments([name])
    harness.timer.bar.set_description(name)
    rows = list(EXPERIMENTS[name](harness))
    config = {
        "extent": asdict(harness.extent),
        "methods": [m.fingerprint() for m in harness.methods],
        "siblings": list(harness.siblings),
        "attacks": {name: attack.by for name, attack in harness.attacks.items()},
        "photographs": len(harness.photograph_paths),
        **settings(harness.model),
    }
    folder.mkdir(parents=True, exist_ok=True)
    begun = begun or provenance("", {})
    document = {**begun, "config": config, "rows": rounded(rows)}
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    write_csv(folder / f"{name}.csv", rows)
    harness.timer.costs.save()
    return rows


def rounded(value: Any) -> Any:
    """Rows with floats of six figures: more say nothing and make files large."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def count_work(names: Sequence[str], harness: Harness) -> dict[str, Counter[str]]:
    """What each experiment has still to do, in this order: images to generate, to attack, to read ..."""
    cache = DryCache(harness.model.folder, harness.model.blank)
    siblings = {name: _dry(model, cache) for name, model in harness.siblings.items()}
    dry = replace(harness, model=_dry(harness.model, cache), siblings=siblings)
    counts = {}
    for name in names:
        check_experiments([name])
        timer = WorkCounter()
        for model in (dry.model, *siblings.values()):
            model.timer = timer
        for _ in EXPERIMENTS[name](dry):
            pass
        counts[name] = timer.counts
    return counts


def _dry(model: ImageModel, cache: DryCache) -> ImageModel:
    dry: Any = replace(model)
    dry.__dict__["cache"] = cache  # in place of the cached property
    return dry


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
