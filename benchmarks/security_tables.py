"""Tables of the threat model and of detection, from results/security/: `python benchmarks/security_tables.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pictures import Row, fill

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "security"
STEP = "oracle: picture"  # rows that are steps of others
PAGES = [ROOT / "docs" / name for name in ("threat-model.md", "detection.md")]
NOTHING = "Not measured yet."


def write(path: Path, document: dict[str, Any]) -> None:
    """A result with what made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def report(name: str, folder: Path) -> None:
    """Write results/security/NAME.json from the rows of a run, and fill the pages."""
    head, run = (json.loads((folder / file).read_text()) for file in ("head.json", "run.json"))
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    document = {**head, "revision": run["revision"], "pixel_code": run["pixel_code"]}
    write(RESULTS / f"{name}.json", {**document, "rows": [row for row in rows if STEP not in row["id"]]})
    fill_page()


def fill_page() -> None:
    """Put what is in results/security/ into the page."""
    tables = {}
    for name in ("pixel", "generation"):
        path = RESULTS / f"{name}.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        for kind, table in TABLES.items():
            tables[f"security {name} {kind}"] = table(rows)
    lean = RESULTS / "lean.json"
    if lean.exists():
        tables["security lean"] = lean_table(json.loads(lean.read_text()))
    for page in PAGES:
        fill(page, tables)


def table(columns: list[str], lines: list[list[Any]]) -> str:
    """A table of Markdown; without lines, that nothing was measured."""
    if not lines:
        return NOTHING
    rows = [columns, ["---"] * len(columns), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def attack_table(rows: list[Row]) -> str:
    """Removal and forgery: the share that is still found, or that is taken for marked."""
    lines = []
    for row in rows:
        if "found" not in row or "seen" in row:
            continue
        more = [f"strength {row['strength']:g}"] if "strength" in row else []
        if "unmarked_found" in row:
            more.append(f"{row['tries']} tries; unmarked pictures found: {rate(row['unmarked_found'])}")
        for name, words in (("one_key", "with one key"), ("all_keys", "with all")):
            if cost := row.get(f"cpu_seconds_{name}"):
                more.append(f"{1000 * cost['unmarked']:.0f} ms an unmarked picture {words}")
        bits = f"{row['accuracy']:.3f}"
        damage = [row.get("ssimulacra2", ""), row.get("ssimulacra2_to_unmarked", "")]
        lines.append([row["id"], bits, rate(row["found"]), rate(row["named"]), *damage, ", ".join(more)])
    columns = ["attack", "bits", "found at 1e-3", "named among 1e6", "SSIMULACRA2", "to the unmarked", ""]
    return table(columns, lines)


def seen_table(rows: list[Row]) -> str:
    """Attacks by the number of marked pictures that the attacker has seen: the share found, and the damage."""
    rows = [row for row in rows if "seen" in row and "found" in row]
    counts = sorted({row["seen"] for row in rows})
    attacks: dict[str, dict[int, str]] = {}
    for row in rows:
        name = row["id"].replace(f" {row['seen']}", " n")
        more = f"; {row['tones_found']} of {row['tones']} tones" if "tones_found" in row else ""
        if "bits_read_without_key" in row:
            more = f"; {row['bits_read_without_key']:.2f} of bits read"
        cell = f"{rate(row['found'])}; {row['ssimulacra2']:.0f}{more}"
        attacks.setdefault(name, {})[row["seen"]] = cell
    lines = [[name, *(cells.get(count, "") for count in counts)] for name, cells in attacks.items()]
    return table(["found [95%]; SSIMULACRA2, by pictures seen: n =", *map(str, counts)], lines)


def collusion_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if "colluders" not in row:
            continue
        cells = [row["colluders"], row["secrets"], rate(row["someone_found"]), rate(row["someone_named"])]
        lines.append([*cells, rate(row["someone_named_by_pictures_together"]), rate(row["innocent_named"])])
    columns = [
        "accounts that mix their copies",
        "secrets",
        "one of them found at 1e-3",
        "named by one picture",
    ]
    return table([*columns, "named by three pictures together", "an innocent named"], lines)


def privacy_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if not row["id"].startswith(("privacy", "forgery: copies told")):
            continue
        for name, value in row.items():
            if isinstance(value, (dict, float)):
                figure = rate(value) if isinstance(value, dict) else f"{value:.3f}"
                lines.append([f"{row['id'].removeprefix('privacy: ')}: {name.replace('_', ' ')}", figure])
    return table(["what is tried", "figure"], lines)


def lean_table(found: dict[str, Any]) -> str:
    lines = [[key, rate(row["raw"]), rate(row["whitened"])] for key, row in found["keys"].items()]
    first = "unmarked pictures kept apart, false-positive rate at a stated 1e-3"
    return table([first, "as the network reads", "whitened"], lines)


def rate(value: Row) -> str:
    low, high = value["interval_95"]
    return f"{value['rate']:.2g} [{low:.2g}, {high:.2g}]"


TABLES = {
    "attacks": attack_table,
    "seen": seen_table,
    "collusion": collusion_table,
    "privacy": privacy_table,
}

if __name__ == "__main__":
    fill_page()
