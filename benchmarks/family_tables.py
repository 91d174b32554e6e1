"""Tables and curves of docs/detection.md and docs/families.md: `python benchmarks/family_tables.py`."""

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
    """Methods side by side; bit accuracy by distortion, the mean of its strengths."""
    attacks = next(iter(results.values()))["attacks"]
    names = [
        f"{name.replace('_', ' ')} {' to '.join(list(row)[:: len(row) - 1])}" for name, row in attacks.items()
    ]
    lines = [
        f"| | bits | PSNR | ms to read | none | {' | '.join(names)} |",
        "| --- |" + " --- |" * (len(names) + 4),
    ]
    for method, row in results.items():
        means = [sum(row["attacks"][name].values()) / len(row["attacks"][name]) for name in attacks]
        cells = " | ".join(f"{value:.3f}" for value in (row["bit_accuracy"], *means))
        lines.append(
            f"| {method} | {row['bits']} | {row['psnr']:.1f} dB | {1000 * row['seconds_to_read']:.0f} | {cells} |"
        )
    return "\n".join(lines)


def families_table(results: dict[str, Any]) -> str:
    """Each family's codec: embedded as by default, and same seed at strength 1."""
    lines = [
        "| codec | `embed`, its strength | payload | after JPEG 50 | resized 0.5x / 2x | same seed: PSNR | "
        "read with the tiny encoder, payload | read with ours, payload | images |",
        "| --- " * 9 + "|",
    ]
    for family, found in results.items():
        embedded, same = found["embedded"], found["same_seed"]
        attacks, payload = found["attacks"], embedded["payload_verified"]
        read = [same[name] for name in ("read_by_teacher", "read_by_own")]
        cells = [
            f"{embedded['bit_accuracy']:.3f} at {embedded['psnr']:.1f} dB, {found['strength']:g}",
            f"{payload['rate']:.2f}",
            f"{attacks['jpeg_50']['bit_accuracy']:.3f}",
            f"{attacks['resize_0.5']['bit_accuracy']:.3f} / {attacks['resize_2']['bit_accuracy']:.3f}",
            f"{same['psnr']:.1f} dB",
            *(f"{row['bit_accuracy']:.3f}, {row['payload_verified']['rate']:.2f}" for row in read),
            f"{payload['of']}, {read[0]['payload_verified']['of']}",
        ]
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def sizes_table(results: dict[str, Any]) -> str:
    """Generated pictures of other sizes, read with the tiny encoder and with ours."""
    sizes = next(iter(results.values()))["generated_sizes"]
    lines = [f"| height x width | {' | '.join(f'`{family}`' for family in results)} |"]
    lines.append("| --- |" + " --- |" * len(results))
    for size in sizes:
        rows = [found["generated_sizes"][size] for found in results.values()]
        cells = [
            " / ".join(f"{row[name]['bit_accuracy']:.2f}" for name in ("read_by_teacher", "read_by_own"))
            + f", {row['psnr']:.0f} dB"
            for row in rows
        ]
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fast_table(results: dict[str, Any]) -> str:
    """What reading with a pixel decoder loses against our autoencoder."""
    names = list(next(iter(results.values()))["fast"])
    lines = [
        f"| codec, autoencoder / `--fast` | {' | '.join(name.replace('_', ' ') for name in names)} | generated |"
    ]
    lines.append("| --- |" + " --- |" * (len(names) + 1))
    for family, found in results.items():
        cells = [
            f"{found['attacks'][n]['bit_accuracy']:.3f} / {found['fast'][n]['bit_accuracy']:.3f}"
            for n in names
        ]
        same = found["same_seed"]
        cells.append(" / ".join(f"{same[f'read_by_{way}']['bit_accuracy']:.3f}" for way in ("own", "fast")))
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_curves(results: dict[str, Any], file: Path) -> None:
    """Bit accuracy over PSNR of each family, embedded and same seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    titles = ("embedded: against the photograph", "same seed: D(z + delta) against D(z)")
    for axes, title, key in zip(
        figure.subplots(1, 2), titles, ("embedded_curve", "same_seed_curve"), strict=True
    ):
        for number, (family, found) in enumerate(results.items()):
            ratios = [row["psnr"] for row in found[key]]
            for style, reader in (("-", "read_by_teacher"), ("--", "read_by_own")):
                if key == "embedded_curve" and style == "--":
                    continue
                values = [row.get(reader, row)["bit_accuracy"] for row in found[key]]
                label = family if style == "-" else None
                axes.plot(ratios, values, style, marker="o", markersize=3, color=f"C{number}", label=label)
        axes.set(title=title, xlabel="PSNR, dB", ylabel="bit accuracy")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(file, dpi=110)


FAMILIES = ("family_sd", "family_sdxl", "family_sd3", "family_flux")
TABLES: dict[str, tuple[str, tuple[str, ...], Callable[[dict[str, Any]], str]]] = {
    "alignment": ("detection", ("alignment",), alignment_table),
    "families": ("families", FAMILIES, families_table),
    "sizes": ("families", FAMILIES, sizes_table),
    "fast": ("families", FAMILIES, fast_table),
    "comparison": ("families", ("family_comparison",), comparison_table),
}


def read_results(files: tuple[str, ...]) -> dict[str, Any] | None:
    """Of one file, or of several by family; None as long as one is missing."""
    paths = [ROOT / "results" / f"{file}.json" for file in files]
    if not all(path.exists() for path in paths):
        return None
    found = [json.loads(path.read_text())["results"] for path in paths]
    names = (file.removeprefix("family_") for file in files)
    return found[0] if len(found) == 1 else dict(zip(names, found, strict=True))


def fill(page: str, text: str) -> str:
    """docs/`page`.md with its tables, as far as there are results."""
    for name, (where, files, table) in TABLES.items():
        results = read_results(files) if where == page else None
        if results is not None:
            new = f"<!-- {name} -->\n{table(results)}\n<!-- end {name} -->"
            text = re.sub(rf"(?s)<!-- {name} -->.*<!-- end {name} -->", lambda _, new=new: new, text)
    return text


if __name__ == "__main__":
    for page in ("detection", "families"):
        path = ROOT / "docs" / f"{page}.md"
        path.write_text(fill(page, path.read_text()))
    measured = read_results(FAMILIES)
    if measured is not None:
        draw_curves(measured, ROOT / "results" / "family_curves.png")
