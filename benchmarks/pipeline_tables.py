"""The tables of docs/pipelines.md that come from results/: what marking costs, and what the fast writer loses."""

from __future__ import annotations

from typing import Any

HEADS = ("nothing", "JPEG 50", "JPEG 10", "rotation 27", "crop to 0.5", "crop 0.5, JPEG 75", "blur 8")


def cost_table(document: dict[str, Any]) -> str:
    """Of results/marking_cost.json."""
    lines = [
        "| pictures a call | rounds of fitting | marking over generation | writing pixels | reading back | "
        "generation layer |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in document["results"]:
        spent = row["seconds"]
        shares = (
            row["marking_over_generation"],
            spent["pixel layer"] / spent["rest"],
            spent["reading back pixels"] / spent["rest"],
            row["generation_layer_over_generation"],
        )
        cells = [row["batch"], row["rounds"], *(f"{share:.1%}" for share in shares)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    runs = document["config"]["runs"]
    note = f"Revision {document['revision']}, {runs} run{'s' * (runs > 1)} a row."
    once = document["config"].get("seconds_of_patterns_once")
    if once is not None:
        note += f" A key's patterns are derived once in a process: {1000 * once:.0f} ms."
    return "\n".join([*lines, "", note])


def writer_table(document: dict[str, Any]) -> str:
    """Of results/pipeline_mark.json: bit accuracy, and in brackets the share marked at a rate of 1e-6."""
    lines = [
        f"| pixels | written by | pictures | SSIMULACRA2, mean / least | Butteraugli | {' | '.join(HEADS)} |",
        "| --- " * (5 + len(HEADS)) + "|",
    ]
    for row in document["results"]:
        visible = f"{row['ssimulacra2']:.1f} / {row['least_ssimulacra2']:.1f}"
        cells = [row["side"], row["writer"], row["pictures"], visible, f"{row['butteraugli_3']:.2f}"]
        cells += [f"{row['bit_accuracy'][name]:.3f} ({row['marked'][name]:.2f})" for name in HEADS]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
