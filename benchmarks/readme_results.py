"""The tables of README from results/: `python benchmarks/readme_results.py`; a test checks them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ATTACKS = {
    "none": "PNG",
    "jpeg_50": "JPEG 50",
    "noise_0.05": "noise 0.05",
    "blur_2": "blur, radius 2",
    "resize_half": "half size",
    "brightness_1.5": "brightness 1.5",
    "rotation_5": "rotation by 5 degrees",
    "resized_crop_0.9": "crop to 90% of the area, resized back",
}
SEARCHES = (
    "scan, hard",
    "scan, soft",
    "scan, batch of 256, a query",
    "index, every key within 11 errors",
    "index, every key within 16 errors",
    "faiss IndexBinaryFlat",
)


def codec_table(results: dict[str, Any]) -> str:
    """Bits and true-positive rates of the shipped codec."""
    lines = [
        "| 200 unseen scenes, 64 bits | bit accuracy | marked at FPR 1e-3 | at 1e-6 |",
        "| --- | --- | --- | --- |",
    ]
    for key, name in ATTACKS.items():
        row = results["attacks"][key]
        rates = [row[f"tpr_at_{rate}"] for rate in ("0.001", "1e-06")]
        cells = " | ".join(
            f"{r['rate']:.3f} [{r['interval_95'][0]:.3f}, {r['interval_95'][1]:.3f}]" for r in rates
        )
        lines.append(f"| {name} | {row['bit_accuracy']:.4f} | {cells} |")
    return "\n".join(lines)


def search_table(rows: list[dict[str, Any]]) -> str:
    """Search among a hundred million keys, against reading them once."""
    found = {row["what"]: row for row in rows if row["keys"] == 10**8}
    lines = [
        "| exact search among 1e8 keys, one core | ms | times the time to read them once |",
        "| --- | --- | --- |",
    ]
    for name in SEARCHES:
        lines.append(f"| {name} | {found[name]['ms']:.3g} | {found[name]['times_limit']:.2f} |")
    return "\n".join(lines)


def growth_table(rows: list[dict[str, Any]]) -> str:
    """Every search at a million and at a hundred million keys, for docs/registry.md."""
    cells = {(row["what"], row["keys"]): row for row in rows}
    lines = ["| | 1e6 keys | 1e8 keys | times the limit at 1e8 |", "| --- | --- | --- | --- |"]
    for name in dict.fromkeys(row["what"] for row in rows if row["what"] != "build index"):
        small, large = cells[name, 10**6], cells[name, 10**8]
        lines.append(f"| {name} | {small['ms']:.3g} | {large['ms']:.3g} | {large['times_limit']:.2f} |")
    return "\n".join(lines)


def rows_table(rows: list[dict[str, Any]]) -> str:
    """Issuing and searching straight from the rows, by the clock and by CPU time."""

    def cell(row: dict[str, Any]) -> str:
        unit, scale = ("s", 1) if row["seconds"] >= 1 else ("ms", 1000)
        rate = f", {row['keys_a_second'] / 1000:.0f} thousand keys/s" if "keys_a_second" in row else ""
        return f"{scale * row['seconds']:.3g} {unit} ({scale * row['cpu_seconds']:.2g} {unit} CPU){rate}"

    cells = {(row["what"], row["database"]): cell(row) for row in rows}
    lines = ["| rows (`benchmarks/registry_store.py`) | SQLite | PostgreSQL |", "| --- | --- | --- |"]
    for name in dict.fromkeys(row["what"] for row in rows):
        lines.append(f"| {name} | {cells[name, 'sqlite']} | {cells[name, 'postgresql']} |")
    return "\n".join(lines)


def fill_registry(text: str) -> str:
    """docs/registry.md with the times of its searches and its rows."""
    for name, file, table in (
        ("search", "registry_search", growth_table),
        ("rows", "registry_store", rows_table),
    ):
        rows = json.loads((ROOT / "results" / f"{file}.json").read_text())["rows"]
        new = f"<!-- {name} -->\n{table(rows)}\n<!-- end {name} -->"
        text = re.sub(rf"(?s)<!-- {name} -->.*<!-- end {name} -->", lambda _, new=new: new, text)
    return text


def fill(text: str) -> str:
    """README with its results."""
    codec = json.loads((ROOT / "results" / "vista_final.json").read_text())
    search = json.loads((ROOT / "results" / "registry_search.json").read_text())
    psnr = codec["results"]["psnr"]
    said = f"""The codec that ships for the embedded model marks z0 (injection `final`); same-seed PSNR is
{psnr["mean"]:.1f} dB (least {psnr["min"]:.1f}). It was measured on painted scenes, through the autoencoder and
image files. Brackets are exact 95% intervals, thresholds exact (45 and 51 of 64 bits). Crops cost it bits. All
figures are in `results/vista_final.json`, made by `diffmark train measure`.

{codec_table(codec["results"])}

The registry, CPU milliseconds (`python benchmarks/registry_search.py`, results/registry_search.json); more in
[docs/registry.md](docs/registry.md):

{search_table(search["rows"])}

"""
    return re.sub(
        r"(?s)(<!-- results -->\n).*(<!-- end results -->)", lambda m: m.group(1) + said + m.group(2), text
    )


if __name__ == "__main__":
    for page, filled in ((ROOT / "README.md", fill), (ROOT / "docs" / "registry.md", fill_registry)):
        page.write_text(filled(page.read_text()))
