"""The tables of docs/detection.md and docs/families.md from results/: `python benchmarks/family_tables.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def alignment_table(results: dict[str, Any]) -> str:
    """Bit accuracy of each codec as pictures come / aligned."""
    lines = [
        f"| bit accuracy, plain / aligned | {' | '.join(f'`{codec}`' for codec in results)} |",
        "| --- |" + " --- |" * len(results),
    ]
    for change in next(iter(results.values()))["changes"]:
        rows = [codec["changes"][change] for codec in results.values()]
        cells = [f"{row['plain']['bit_accuracy']:.3f} / {row['aligned']['bit_accuracy']:.3f}" for row in rows]
        lines.append(f"| {change} | {' | '.join(cells)} |")
    changes = [list(codec["changes"].values()) for codec in results.values()]
    cells = [
        f"{rows[0]['times_plain']:.0f} / {max(row['times_plain'] for row in rows):.0f}" for rows in changes
    ]
    lines.append(f"| times the work of plain reading: untouched / the dearest change | {' | '.join(cells)} |")
    unmarked = [codec["unmarked"] for codec in results.values()]
    cells = [f"{row['times_plain']:.0f}" for row in unmarked]
    lines.append(f"| ... of unmarked pictures | {' | '.join(cells)} |")
    cells = [f"{row['evidence']['largest']:.1f} of {row['images']}" for row in unmarked]
    lines.append(f"| largest evidence in unmarked pictures | {' | '.join(cells)} |")
    cells = [f"{row['false_positives_at_0.001']['rate']:.4f}" for row in unmarked]
    lines.append(f"| random secrets that pass at FPR 0.001 there | {' | '.join(cells)} |")
    cells = [f"{codec['images']}, {codec['strength']:g}" for codec in results.values()]
    return "\n".join([*lines, f"| marked pictures, strength | {' | '.join(cells)} |"])


def comparison_table(results: dict[str, Any]) -> str:
    """Methods side by side; bit accuracy by distortion."""
    names = list(next(iter(results.values()))["bit_accuracy"])
    lines = [
        f"| | bits | PSNR | ms to read | {' | '.join(names)} |",
        "| --- |" + " --- |" * (len(names) + 3),
    ]
    for method, row in results.items():
        cells = " | ".join(f"{row['bit_accuracy'][name]:.3f}" for name in names)
        lines.append(
            f"| {method} | {row['bits']} | {row['psnr']:.1f} dB | {1000 * row['seconds_to_read']:.0f} | {cells} |"
        )
    return "\n".join(lines)


TABLES: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "alignment": ("detection", "alignment", alignment_table),
    "comparison": ("families", "family_comparison", comparison_table),
}


def fill(page: str, text: str) -> str:
    """docs/`page`.md with its tables, as far as there are results."""
    for name, (where, file, table) in TABLES.items():
        path = ROOT / "results" / f"{file}.json"
        if where == page and path.exists():
            results = json.loads(path.read_text())["results"]
            new = f"<!-- {name} -->\n{table(results)}\n<!-- end {name} -->"
            text = re.sub(rf"(?s)<!-- {name} -->.*<!-- end {name} -->", lambda _, new=new: new, text)
    return text


if __name__ == "__main__":
    for page in ("detection", "families"):
        path = ROOT / "docs" / f"{page}.md"
        path.write_text(fill(page, path.read_text()))
