"""Tables of the threat model and of detection, from results/security/: `python benchmarks/security_tables.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pictures import Row, fill

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "security"
PAGES = [ROOT / "docs" / name for name in ("threat-model.md", "detection.md")]


def write(path: Path, document: dict[str, Any]) -> None:
    """A result with what made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def fill_page() -> None:
    """Put what is in results/security/ into the page."""
    tables = {}
    for name in ("pixel", "generation"):
        path = RESULTS / f"{name}.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        for kind, table in (
            ("attacks", attack_table),
            ("collusion", collusion_table),
            ("privacy", privacy_table),
        ):
            tables[f"security {name} {kind}"] = table(rows)
    lean = RESULTS / "lean.json"
    if lean.exists():
        tables["security lean"] = lean_table(json.loads(lean.read_text()))
    for page in PAGES:
        fill(page, tables)


def attack_table(rows: list[Row]) -> str:
    """Removal and forgery: the share that is still found, or that is taken for marked."""
    rows = [row for row in rows if "found" in row]
    if not rows:
        return "Not measured yet."
    lines = ["| attack | bits | found at 1e-3 | named among 1e6 | SSIMULACRA2 | |", "| --- " * 6 + "|"]
    for row in rows:
        more = [f"strength {row['strength']:g}"] if "strength" in row else []
        if "tones_found" in row:
            more.append(f"{row['tones_found']} of {row['tones']} tones located")
        if "bits_read_without_key" in row:
            more.append(f"{row['bits_read_without_key']:.3f} of the bits read without the key")
        lines.append(
            f"| {row['id']} | {row['accuracy']:.3f} | {_rate(row['found'])} | {_rate(row['named'])} | "
            f"{row.get('ssimulacra2', '')} | {', '.join(more)} |"
        )
    return "\n".join(lines)


def collusion_table(rows: list[Row]) -> str:
    rows = [row for row in rows if "colluders" in row]
    if not rows:
        return "Not measured yet."
    lines = [
        "| accounts that mix their copies | secrets | one of them named by one picture | "
        "named by all pictures together | an innocent named |",
        "| --- " * 5 + "|",
    ]
    for row in rows:
        all_named = row.get("named_by_all_pictures_together")
        together = "" if all_named is None else f"{all_named} of {row['colluders']}"
        cells = [row["colluders"], row["secrets"], _rate(row["someone_named"]), together]
        lines.append("| " + " | ".join(map(str, [*cells, _rate(row["innocent_named"])])) + " |")
    return "\n".join(lines)


def privacy_table(rows: list[Row]) -> str:
    found = [row for row in rows if row["id"].startswith("privacy")]
    if not found:
        return "Not measured yet."
    lines = ["| what a stranger tries | figure |", "| --- | --- |"]
    for row in found:
        for name, value in row.items():
            if name not in ("id", "images"):
                lines.append(
                    f"| {row['id'].removeprefix('privacy: ')}: {name.replace('_', ' ')} | {value:.3f} |"
                )
    return "\n".join(lines)


def lean_table(found: dict[str, Any]) -> str:
    lines = [
        "| unmarked pictures kept apart, false-positive rate at a stated 1e-3 | as the network reads | whitened |",
        "| --- " * 3 + "|",
    ]
    for key, row in found["keys"].items():
        lines.append(f"| {key} | {_rate(row['raw'])} | {_rate(row['whitened'])} |")
    return "\n".join(lines)


def _rate(value: Row) -> str:
    low, high = value["interval_95"]
    return f"{value['rate']:.2g} [{low:.2g}, {high:.2g}]"


if __name__ == "__main__":
    fill_page()
