"""What the rows of a run say, in a few lines and one table: averages, ranks, cells that are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from diffmark.evaluation.rows import WAVES, Row
from diffmark.statistics import clopper_pearson

OPERATING_POINT = "tpr"  # exact FPR of 0.1%
MARGIN = 0.02  # of TPR: cells that differ by less are not lost
VISIBLE = ("ssimulacra2", "butteraugli", "flip", "psnr", "ssim")


def by_attack(rows: Iterable[Row], figure: str = OPERATING_POINT) -> dict[str, dict[str, Row]]:
    """Of each method and attack: mean over the strengths that all have, the exact interval of all pictures."""
    cells: dict[tuple[str, str], dict[float, Row]] = {}
    for row in (row for row in rows if figure in row):
        cells.setdefault((row["method"], row["attack"]), {})[row["strength"]] = row
    found: dict[str, dict[str, Row]] = {}
    for (method, attack), measured in cells.items():
        shared = set.intersection(*(set(m) for (_, name), m in cells.items() if name == attack))
        chosen = [row for strength, row in measured.items() if strength in shared]
        if not chosen:
            continue
        trials = sum(row["images"] for row in chosen)
        low, high = clopper_pearson(
            round(sum(row["images"] * row[figure]["value"] for row in chosen)), trials
        )
        found.setdefault(method, {})[attack] = {
            "value": _mean([row[figure]["value"] for row in chosen]),
            "low": low,
            "high": high,
            "images": min(row["images"] for row in chosen),
            "strengths": len(shared),
        }
    return found


def average(cells: dict[str, Row], attacks: Sequence[str] = WAVES) -> float | None:
    """Mean over attacks; None where one is missing."""
    if not attacks or any(name not in cells for name in attacks):
        return None
    return _mean([cells[name]["value"] for name in attacks])


def comparable(table: dict[str, dict[str, Row]]) -> tuple[str, ...]:
    """The paper's attacks that all methods were measured under."""
    return tuple(name for name in WAVES if all(name in cells for cells in table.values()))


def ranking(table: dict[str, dict[str, Row]]) -> list[tuple[str, float]]:
    """Methods by their average over what all were measured under, best first."""
    attacks = comparable(table)
    averages = (
        [(method, average(cells, attacks) or 0.0) for method, cells in table.items()] if attacks else []
    )
    return sorted(averages, key=lambda entry: -entry[1])


def lost(table: dict[str, dict[str, Row]], method: str) -> list[tuple[str, str, float, float]]:
    """Attacks under which another method finds more: attack, the best other, its rate, the method's own."""
    found = []
    for attack, own in table.get(method, {}).items():
        others = {name: cells[attack]["value"] for name, cells in table.items()
                  if attack in cells and not name.startswith("diffmark")}  # fmt: skip
        if others:
            best = max(others, key=lambda name: others[name])
            if others[best] > own["value"] + MARGIN:
                found.append((attack, best, others[best], own["value"]))
    return sorted(found, key=lambda entry: entry[3] - entry[2])


def words(rows: Sequence[Row], figure: str = OPERATING_POINT) -> list[str]:
    """DiffMark's ranks and lost cells as sentences, from the rows."""
    table = by_attack(rows, figure)
    ranked, attacks = ranking(table), comparable(table)
    if not ranked:
        return []
    said = []
    for place, (method, value) in enumerate(ranked, start=1):
        if not method.startswith("diffmark"):
            continue
        ahead = [f"{name} ({other:.3f})" for name, other in ranked[: place - 1]]
        behind = f", behind {', '.join(ahead)}" if ahead else ""
        said.append(
            f"{method} is number {place} of {len(ranked)} by the average of {len(attacks)} attacks: "
            f"{value:.3f}{behind}."
        )
        others = [cells for name, cells in table.items() if not name.startswith("diffmark")]
        rivalled = [attack for attack in table[method] if any(attack in cells for cells in others)]
        worse = lost(table, method)
        cells = [f"{attack} ({own:.2f}; {best} {other:.2f})" for attack, best, other, own in worse]
        said.append(
            f"It loses {len(cells)} of {len(rivalled)} attacks to a method that is not DiffMark's"
            + (f": {', '.join(cells)}." if cells else ".")
        )
    return said


def robustness_lines(rows: Sequence[Row], figure: str = OPERATING_POINT) -> tuple[list[str], list[list[Any]]]:
    """Methods, and a line an attack with a cell (value, low, high, images) or None each; the average first."""
    table = by_attack(rows, figure)
    methods, attacks = list(table), comparable(table)
    lines: list[list[Any]] = [
        [f"Average of {len(attacks)}", *({"value": average(table[m], attacks)} for m in methods)]
    ]
    order = [name for name in WAVES if any(name in cells for cells in table.values())]
    order += [name for name in dict.fromkeys(row["attack"] for row in rows) if name not in order]
    lines += [[name, *(table[method].get(name) for method in methods)] for name in order]
    return methods, lines


def terminal_tables(documents: dict[str, dict[str, Any]]) -> list[Any]:
    """The clean and the robustness table for rich, and what they say."""
    from rich.table import Table

    parts: list[Any] = []
    if documents.get("clean", {}).get("rows"):
        table = Table(title="Clean: TPR at exact FPR 0.1%, and how much is seen")
        for column in (
            "method",
            "bits",
            "images",
            "bit accuracy",
            "TPR [95%]",
            "SSIMULACRA2",
            "Butteraugli",
            "PSNR",
        ):
            table.add_column(column, justify="left" if column == "method" else "right")
        for row in documents["clean"]["rows"]:
            rate = row.get("tpr_0.001_exact")
            seen = [
                f"{row[name]:.1f}" if name in row else "" for name in ("ssimulacra2", "butteraugli", "psnr")
            ]
            accuracy = f"{row['bit_accuracy']:.3f}" if "bit_accuracy" in row else "presence"
            table.add_row(
                row["method"], str(row["bits"]), str(row["images"]), accuracy, interval(rate), *seen
            )
        parts.append(table)
    if documents.get("robustness", {}).get("rows"):
        rows = documents["robustness"]["rows"]
        methods, lines = robustness_lines(rows)
        table = Table(title="Under attack: TPR at exact FPR 0.1%, mean over strengths")
        table.add_column("attack")
        for method in methods:
            table.add_column(method.replace("diffmark", "DM"), justify="right")
        for name, *cells in lines:
            best = max((cell["value"] for cell in cells if cell and cell["value"] is not None), default=None)
            shown = ["" if not cell or cell["value"] is None else f"{cell['value']:.2f}" for cell in cells]
            marked = [
                f"[bold]{text}[/bold]" if text and cell["value"] == best and best > 0 else text
                for text, cell in zip(shown, cells, strict=True)
            ]
            table.add_row(name, *marked)
        parts += [table, *words(rows)]
    return parts


def interval(rate: dict[str, float] | None) -> str:
    """A rate with its exact interval."""
    return f"{rate['value']:.3f} [{rate['low']:.2f}, {rate['high']:.2f}]" if rate else ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
