"""The tables of README and docs from results/: `make results`; a test checks them."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from diffmark.evaluation.summary import robustness_lines, words

ROOT = Path(__file__).parents[1]
PAPER = tomllib.loads((ROOT / "benchmarks" / "paper.toml").read_text())
OLDER = """This run is older than the corrections of [the baselines](baselines.md), Gaussian Shading, PRC and
DiffMark's other two forms.

"""
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
        text = between(name, table(rows), text)
    return text


def fill_training(text: str) -> str:
    """docs/training.md with the ablations."""
    return between("ablations", ablation_table(ROOT / "results" / "ablations"), text)


def fill_baselines(text: str) -> str:
    """docs/baselines.md with what each method finds of its own marks."""
    rows = json.loads((ROOT / "results" / "evaluation" / "clean.json").read_text())["rows"]
    lines = [
        "| method | images | bit accuracy | TPR at FPR 0.1%, exact (unmarked that pass) | PSNR, same seed |",
        "| --- " * 5 + "|",
    ]
    for row in rows:
        passed = row["tpr_0.001_exact"]
        bits = f"{row['bit_accuracy']:.4f}" if "bit_accuracy" in row else ""
        found = f"{_rate(passed)} ({passed['observed_fpr']:.2%})"
        lines.append(f"| {row['method']} | {row['images']} | {bits} | {found} | {row['psnr']:.1f} dB |")
    return between("alive", "\n".join(lines), text)


def between(name: str, new: str, text: str) -> str:
    """A page with something new between its two comments of a name."""
    marked = f"<!-- {name} -->\n{new}\n<!-- end {name} -->"
    return re.sub(rf"(?s)<!-- {name} -->.*<!-- end {name} -->", lambda _: marked, text)


def ablation_table(folder: Path) -> str:
    """A line for each run of configs/ablations, the base first; a run that a guard stopped says why."""
    lines = [
        "| run | bit accuracy | mean under attack | marked at FPR 1e-3 | same-seed PSNR |",
        "| --- " * 5 + "|",
    ]
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem != "base", path.stem)):
        document = json.loads(path.read_text())
        if "stopped" in document:
            lines.append(
                f"| `{path.stem}` | stopped by a guard: {document['stopped'].split('. ')[0]} | | | |"
            )
            continue
        attacks, psnr = document["results"]["attacks"], document["results"]["psnr"]["mean"]
        clean = attacks.pop("none")
        mean = _mean([row["bit_accuracy"] for row in attacks.values()])
        cells = [f"{clean['bit_accuracy']:.3f}", f"{mean:.3f}", f"{clean['tpr_at_0.001']['rate']:.2f}"]
        lines.append(f"| `{path.stem}` | {' | '.join(cells)} | {psnr:.1f} dB |")
    return "\n".join(lines)


def evaluation_section(folder: Path) -> str:
    """The two main tables and two figures of a full run of `diffmark evaluate all`; nothing while there is none."""
    paths = [folder / f"{name}.json" for name in ("clean", "robustness")]
    if not all(path.exists() for path in paths):
        return ""
    clean, robustness = (json.loads(path.read_text()) for path in paths)
    rows, place = clean["rows"], folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    attacked = robustness["rows"]
    other = robustness_table(attacked, theirs=False)
    installed = f"The same for all others:\n\n{other}\n\n" if other else ""
    older = "" if "more_strengths" in robustness["config"]["extent"] else OLDER
    ranks = "\n".join(words(attacked))
    return f"""## Methods compared on one model

Images of `{clean["config"]["model"]}`, of prompts and seeds that no training saw; unmarked images of the model, its
siblings, the painter and photographs, half of them attacked. All figures are in `{place}`, made by

    {clean["command"]}

Frechet distance of features of {rows[0]["frechet_network"]}; "distance" has LPIPS's form on
{rows[0]["distance_network"]} and is not LPIPS.

{clean_table(rows)}

Frechet distances shrink with the number of images: compare each with that of as many unmarked ones in brackets.
Exact thresholds are of the matching bits, and for methods that tell presence only of their own test; the share of
unmarked images that pass tells whether to believe them.

## Under attack

{older}TPR at an exact FPR of 0.1%, mean over strengths, with the exact 95% interval of all pictures; the best of
a line bold; the paper's figure for SD 1.5 after it. {counts(attacked)}.
Bit accuracies, every strength and other rates are in `{place}/robustness.csv`, made by

    {robustness["command"]}

{ranks}

{robustness_table(attacked, theirs=True)}

{installed}Blur is given for images of 512 px and is twice as harsh at 256 px, where radius 20 is 8% of the side.
{latency_section(folder)}
## Every strength, and the search among many keys

![robustness](../{place}/robustness.png)
![identification among many keys](../{place}/identification.png)

"""


def generated(folder: Path) -> str:
    """DiffMark's own line of the clean table in words; nothing while it was not measured."""
    path = folder / "clean.json"
    if not path.exists():
        return ""
    rows = json.loads(path.read_text())["rows"]
    row = next(row for row in rows if row["method"].startswith("diffmark"))
    exact = {rate: row[f"tpr_{rate}_exact"] for rate in ("0.001", "1e-06")}
    return f"""On {row["images"]:,} generated images of unseen prompts and seeds (50 DDIM steps, guidance 4):
bit accuracy {row["bit_accuracy"]:.4f} at {row["psnr"]:.1f} dB; marked at FPR 1e-3 {_rate(exact["0.001"])}, at 1e-6
{_rate(exact["1e-06"])}. Of {row["negatives"]:,} unmarked ones {exact["0.001"]["observed_fpr"]:.2%} pass at 1e-3 and
{exact["1e-06"]["observed_fpr"]:.2%} at 1e-6 (`diffmark evaluate clean`, results/evaluation/clean.json).

"""


def clean_table(rows: list[dict[str, Any]]) -> str:
    """A line a method, with what the paper states of it."""
    lines = [
        "| method | bits | images | bit accuracy | TPR at FPR 1%, empirical | at 0.1%, exact (unmarked that "
        "pass) | at 1e-6, exact | AUC | negatives "
        "| PSNR | SSIM | distance | Frechet (unmarked) | the paper's, on SD 1.5: bits, TPR at 0.1%, PSNR |",
        "| --- " * 14 + "|",
    ]
    for row in rows:
        accuracy = f"{row['bit_accuracy']:.4f}" if "bit_accuracy" in row else "presence only"
        names = ("0.01_empirical", "0.001_exact", "1e-06_exact")
        rates = [_rate(row.get(f"tpr_{name}")) for name in names]
        if "tpr_0.001_exact" in row:
            rates[1] += f" ({row['tpr_0.001_exact']['observed_fpr']:.2%})"
        cells = [row["method"], str(row["bits"]), str(row["images"]), accuracy, *rates]
        cells += [f"{row['auc']:.4f}", str(row["negatives"])]
        cells += [f"{row['psnr']:.1f}", f"{row['ssim']:.3f}", f"{row['distance']:.3f}"]
        cells += [f"{row['frechet']:.2f} ({row['frechet_unmarked']:.2f})", _in_paper(row["method"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _in_paper(method: str) -> str:
    if method not in PAPER["clean"]:
        return ""
    _, accuracy, rate, psnr = PAPER["clean"][method]
    return f"{'-' if math.isnan(accuracy) else f'{accuracy:.3f}'}, {rate:.3f}, {psnr:.1f} dB"


def counts(rows: list[dict[str, Any]]) -> str:
    """How many pictures an attack and strength each method has."""
    groups: dict[str, list[str]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        images = [row["images"] for row in rows if row["method"] == method]
        span = f"{min(images)}" + (f" to {max(images)}" if max(images) > min(images) else "")
        groups.setdefault(span, []).append(method)
    return "Pictures an attack and strength: " + "; ".join(
        f"{n} of {', '.join(m)}" for n, m in groups.items()
    )


def robustness_table(rows: list[dict[str, Any]], theirs: bool) -> str:
    """Attacks against the paper's methods, with its own figures, or against others; the average first."""
    listed = PAPER["robustness"]["methods"]
    methods, lines = robustness_lines(rows)
    chosen = [number for number, name in enumerate(methods, start=1) if (name in listed) == theirs]
    if not chosen:
        return ""
    by = {row["attack"]: row.get("by") for row in rows}
    table = [f"| attack | {' | '.join(methods[i - 1] for i in chosen)} |", "| --- " * (len(chosen) + 1) + "|"]
    for line in lines:
        attack = str(line[0])
        best = max((c["value"] for c in line[1:] if c and c["value"] is not None), default=None)
        cells = []
        for i in chosen:
            stated = PAPER["robustness"].get(attack)
            cells.append(
                _cell(line[i], best)
                + (f" ({stated[listed.index(methods[i - 1])]:.2f})" if theirs and stated else "")
            )
        named = attack.replace("_", " ") + (f", by {by[attack]}" if by.get(attack) else "")
        table.append(f"| {named} | {' | '.join(cells)} |")
    return "\n".join(table)


def _cell(cell: dict[str, Any] | None, best: float | None) -> str:
    if not cell or cell["value"] is None:
        return ""
    value = f"{cell['value']:.2f}"
    shown = f"**{value}**" if cell["value"] == best and best > 0 else value
    return f"{shown} [{cell['low']:.2f}, {cell['high']:.2f}]" if "low" in cell else shown


def latency_section(folder: Path) -> str:
    """How long reading takes beside DiffMark, at batch 1 and 16; nothing while it was not measured."""
    path = folder / "latency.json"
    if not path.exists():
        return ""
    rows = json.loads(path.read_text())["rows"]
    cells = {(row["method"], row["batch"]): row for row in rows}
    lines = [
        "| reading an image | ms | times DiffMark's | ms in a batch of 16 | times DiffMark's | stages, batch 1 "
        "| the paper's ms, L40S |",
        "| --- " * 7 + "|",
    ]
    for name in dict.fromkeys(row["method"] for row in rows):
        one, many = cells[name, 1], cells[name, 16]
        said = [f"{1000 * row['seconds_per_image']:.3g} | {row['ratio']:.3g}" for row in (one, many)]
        stages = ", ".join(f"{stage} {share:.0%}" for stage, share in one["stages"].items())
        lines.append(f"| {name} | {' | '.join(said)} | {stages} | {PAPER['latency'].get(name, '')} |")
    return "\n## Reading time\n\nMethods take turns in one run.\n\n" + "\n".join(lines) + "\n"


def _rate(rate: dict[str, float] | None) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]" if rate else "too few bits"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def fill_results(text: str) -> str:
    """docs/results.md with the tables of the embedded model and the registry."""
    codec = json.loads((ROOT / "results" / "vista_final.json").read_text())
    search = json.loads((ROOT / "results" / "registry_search.json").read_text())
    psnr = codec["results"]["psnr"]
    said = f"""## The shipped codec

The codec that ships for the embedded model marks z0 (injection `final`); same-seed PSNR is
{psnr["mean"]:.1f} dB (least {psnr["min"]:.1f}). It was measured on painted scenes, through the autoencoder and
image files. Brackets are exact 95% intervals, thresholds exact (45 and 51 of 64 bits). Crops cost it bits; the
pixel layer, which is written beside it, is searched for. All figures are in `results/vista_final.json`, made by
`diffmark train measure`.

{codec_table(codec["results"])}

{generated(ROOT / "results" / "evaluation")}\
{evaluation_section(ROOT / "results" / "evaluation")}\
## The registry

CPU milliseconds (`python benchmarks/registry_search.py`, results/registry_search.json); more in
[registry](registry.md):

{search_table(search["rows"])}
"""
    return between("results", said, text)


def fill_readme(text: str) -> str:
    """README with its one table and its picture's caption."""
    import readme_picture

    robustness = json.loads((ROOT / "results" / "pixel_robustness.json").read_text())["results"]
    seconds = json.loads((ROOT / "results" / "pixel_speed.json").read_text())["results"]["seconds"]
    return readme_picture.fill(between("methods", methods_table(robustness, seconds), text))


def methods_table(robustness: dict[str, Any], seconds: dict[str, float]) -> str:
    """How visible each method's mark is, what it survives and how long reading takes, on the same pictures."""
    from pixel_robustness import COMBINED, FPR, HARSH, KEPT, MOVED, RIVALS

    groups = {
        "compressed, resized, noise, light": KEPT,
        "turned, mirrored, cropped, framed": MOVED,
        "several of these at once": COMBINED,
        "harsh": HARSH,
    }
    lines = [
        f"| method | bits | pictures | SSIMULACRA2 | {' | '.join(groups)} | read, ms |",
        "| --- " * (5 + len(groups)) + "|",
    ]
    for name in ("pixel", *RIVALS):
        found = robustness[name]
        cells = [
            str(found["bits"]),
            str(found["pictures"]),
            f"{found['visibility']['ssimulacra2']['mean']:.0f}",
        ]
        for attacks in groups.values():
            marked = [found["cells"][attack]["marked"] for attack in attacks if attack in found["cells"]]
            cells.append(f"{_mean(marked):.2f}" if marked else "")
        took = seconds.get("pixel, plain" if name == "pixel" else name)
        cells.append(_milliseconds(took) if took else "not measured")
        lines.append(f"| {'**DiffMark, pixel layer**' if name == 'pixel' else name} | {' | '.join(cells)} |")
    counts = ", ".join(f"{len(attacks)} {name}" for name, attacks in groups.items())
    rate = f"1e-{-math.log10(FPR):.0f}"
    return "\n".join(lines) + (
        f"\n\nShare of pictures found at a false-positive rate of {rate}, mean over the attacks of a column "
        f"({counts}). SSIMULACRA2 of marked pictures: higher is less visible. Photographs and images of Stable "
        "Diffusion 1.4 of 512 pixels that nothing was tuned on; CPU time of one thread. All rows, "
        "intervals and commands: [docs/pixel.md](docs/pixel.md), `results/pixel_robustness.json`, "
        "`results/pixel_speed.json`."
    )


def _milliseconds(seconds: float) -> str:
    """25.3, or 2,236."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def fill_pixel(text: str) -> str:
    """docs/pixel.md with its tables."""
    import pixel_negatives
    import pixel_robustness

    found = json.loads((ROOT / "results" / "pixel_robustness.json").read_text())["results"]
    unmarked = json.loads((ROOT / "results" / "pixel_negatives.json").read_text())["results"]
    tables = {**pixel_robustness.tables(found), "pixel negatives": pixel_negatives.table(unmarked)}
    for name, table in tables.items():
        text = between(name, table, text)
    return text


def fill_pipelines(text: str) -> str:
    """docs/pipelines.md with its tables of results."""
    import pipeline_tables

    for name, table in (
        ("marking_cost", pipeline_tables.cost_table),
        ("pipeline_mark", pipeline_tables.writer_table),
    ):
        document = json.loads((ROOT / "results" / f"{name}.json").read_text())
        text = between(name.replace("_", " "), table(document), text)
    return text


def fill_payloads(text: str) -> str:
    """docs/payloads.md with its table."""
    import payload_table

    return payload_table.fill(text, json.loads((ROOT / "results" / "payload_table.json").read_text())["rows"])


def fill_service(text: str) -> str:
    """docs/service.md with load and memory."""
    import service_tables

    found = json.loads((ROOT / "results" / "service_load.json").read_text())
    text = between("load", service_tables.load_table(found), text)
    return between("memory", service_tables.memory_table(found), text)


def fill_law(text: str) -> str:
    """docs/law.md with what fingerprints find."""
    import service_tables

    found = json.loads((ROOT / "results" / "fingerprint.json").read_text())
    return between("fingerprint", service_tables.fingerprint_table(found), text)


PAGES = {
    "README.md": fill_readme,
    "docs/baselines.md": fill_baselines,
    "docs/law.md": fill_law,
    "docs/payloads.md": fill_payloads,
    "docs/pipelines.md": fill_pipelines,
    "docs/pixel.md": fill_pixel,
    "docs/registry.md": fill_registry,
    "docs/results.md": fill_results,
    "docs/service.md": fill_service,
    "docs/training.md": fill_training,
}


def main() -> None:
    for name, filled in PAGES.items():
        before = (ROOT / name).read_text()
        after = filled(before)
        if after != before:
            (ROOT / name).write_text(after)
            print(f"{name} filled")


if __name__ == "__main__":
    main()
