"""Tables of the threat model and of detection, from results/security/: `python benchmarks/security_tables.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import markdown_tables
from pictures import Row, fill
from security.collusion import TOGETHER

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "security"
STEP = "oracle: picture"  # rows that are steps of others
PAGES = [ROOT / name for name in ("docs/threat-model.md", "docs/detection.md")]
NOTHING = "Not measured yet."
KEYLESS = "without the key"
LAYERS = ("pixel", "vista", "vista-final")
SUMMARY = {  # what is tried: the rows that say so in each of LAYERS
    "nothing": ("none", "none", "none"),
    f"overwritten, {KEYLESS}": (
        "overwritten, private, attacked with another key",
        "overwritten: gradient towards another key's pattern, 8 levels",
        "overwritten with the codec",
    ),
    f"gradient through the public reader, {KEYLESS}": (
        "gradient on the margins, private, attacked with another key",
        f"complement: gradient on the noise that is read, {KEYLESS}, 4 levels",
        "gradient on the margins with the codec",
    ),
    "gradient on the margins, with the key": (
        "gradient on the margins, public key",
        "gradient on the margins, operator's key, 8 levels",
        "",
    ),
    "mean of pictures of one secret taken out (30; 100; 100)": (
        "mean of 30, one secret",
        "mean latents of 100, one secret",
        "mean latents of 100, one secret",
    ),
    "patterns of pictures of fresh secrets taken out (1,000; 100; 100)": (
        "principal directions of 1000, fresh secrets",
        "principal directions of 100, fresh secrets",
        "principal directions of 100, fresh secrets",
    ),
    "tones of 10 pictures notched, then a rotation": ("tones of 10 notched, rotated", "", ""),
    "1,000 questions to the detector": ("oracle of 1000 questions", "oracle of 1000 questions", ""),
    "forgery from one picture": (
        "forgery: copied from one picture",
        "forgery: gradient towards the noise of one picture, 4 levels",
        f"forgery: read and written again with the codec, {KEYLESS}",
    ),
    "forgery: another picture painted from the noise that is read in one": (
        "",
        "forgery: new picture from the noise of one picture, with the network",
        "",
    ),
    "5 accounts mix copies: one of them named": ("collusion of 5, fresh secrets",) * 3,
}


def write(path: Path, document: dict[str, Any]) -> None:
    """A result with what made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def report(name: str, folder: Path) -> None:
    """Write results/security/NAME.json from the rows of a run, and fill the pages."""
    head, run = (json.loads((folder / file).read_text()) for file in ("head.json", "run.json"))
    rows = sorted((json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()), key=place)
    document = {**head, "revision": run["revision"], "pixel_code": run["pixel_code"]}
    write(RESULTS / f"{name}.json", {**document, "rows": [row for row in rows if STEP not in row["id"]]})
    fill_pages()


def place(row: Row) -> tuple[bool, list[tuple[int, str]]]:
    """Where a row stands, whenever it was made: by name, the numbers in it by size; the first is without attack."""
    parts = re.findall(r"\d+|\D+", row["id"])
    return not row["id"].startswith("none"), [(int(p), "") if p.isdigit() else (-1, p) for p in parts]


def rows_of(name: str) -> list[Row]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def fill_pages(pages: Sequence[Path] = PAGES) -> None:
    """Put what is in results/security/ into the pages."""
    tables = {}
    for name in LAYERS:
        for kind, made in TABLES.items():
            tables[f"security {name} {kind}"] = made(rows_of(name))
    tables["security"] = summary({name: rows_of(name) for name in LAYERS})
    for name in LAYERS[1:]:
        lean = RESULTS / f"lean-{name}.json"
        tables[f"security lean {name}"] = (
            lean_table(json.loads(lean.read_text())) if lean.exists() else NOTHING
        )
    for page in pages:
        fill(page, tables)


def table(columns: list[str], lines: list[list[Any]]) -> str:
    """A table of Markdown without its empty columns; without lines, that nothing was measured."""
    if not lines:
        return NOTHING
    filled = [place for place in range(len(columns)) if any(line[place] != "" for line in lines)]
    return markdown_tables.table(
        [columns[place] for place in filled], [[line[place] for place in filled] for line in lines]
    )


def summary(rows: dict[str, list[Row]]) -> str:
    """What matters most, of all layers: the shares that are still found, or taken for marked."""
    by_id = [{row["id"]: row for row in rows[layer]} for layer in LAYERS]
    lines = []
    for words, names in SUMMARY.items():
        found = [layer.get(name) for layer, name in zip(by_id, names, strict=True)]
        if any(found):
            lines.append([words, *map(_cell, found)])
    columns = ["attack: share still found [95%]; SSIMULACRA2", "pixel layer", "`vista`", "`vista-final`"]
    return table(columns, lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    damage = f"; {row['ssimulacra2']:.0f}" if "ssimulacra2" in row else ""
    return rate(row.get("found", row.get("someone_named"))) + damage


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
        if "places_of_bits_found" in row:
            more += f", {row['places_of_bits_found']:.2f} of the places told"
        attacks.setdefault(name, {})[row["seen"]] = _cell(row) + more
    lines = [[name, *(cells.get(count, "") for count in counts)] for name, cells in attacks.items()]
    return table(["found [95%]; SSIMULACRA2, by pictures seen: n =", *map(str, counts)], lines)


def collusion_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if "colluders" not in row:
            continue
        figures = [row["someone_found"], row["someone_named"]]
        figures += [row.get(f"someone_named_by_{number}") for number in TOGETHER]
        cells = ["" if one is None else rate(one) for one in (*figures, row["innocent_named"])]
        lines.append([row["colluders"], row["secrets"], *cells])
    columns = [
        "accounts that mix their copies",
        "secrets",
        "one of them found at 1e-3",
        "named by one picture",
    ]
    columns += [f"named by {number} pictures together" for number in TOGETHER]
    return table([*columns, "an innocent named"], lines)


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
    lines = []
    for name, row in found["keys"].items():
        cells = [
            rate(one) + (f"; {one['worst_key']:.2g}" if "worst_key" in one else "") for one in row.values()
        ]
        lines.append([name, *cells])
    count = found["pictures"]["test"]
    keys = next(iter(found["keys"].values()))["raw"].get("keys")
    under = f" under {keys} operator keys; under the worst of them" if keys else ""
    first = f"false-positive rate at a stated {found['stated']:g}, of {count} pictures kept apart{under}"
    return table([first, "as the network reads", "as the codec reads"], lines)


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
    fill_pages()
