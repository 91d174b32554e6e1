"""The section of docs/results.md that compares methods, from the rows of `diffmark evaluate`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from markdown_tables import table

from diffmark.evaluation.summary import robustness_lines, words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAPER = tomllib.loads((ROOT / "benchmarks" / "paper.toml").read_text())
OLDER = """ This run is older than the corrections of [the baselines](baselines.md), Gaussian Shading, PRC and
DiffMark's other two forms."""
CODECS = {"final": "`vista-final`", "initial": "`vista`", "persistent": "`vista-persistent`"}  # by injection


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

{codec_of(clean)}
Frechet distance of features of {rows[0]["frechet_network"]}; "distance" has LPIPS's form on
{rows[0]["distance_network"]} and is not LPIPS.

{clean_table(rows)}

Frechet distances shrink with the number of images: compare each with that of as many unmarked ones in brackets.
Exact thresholds are of the matching bits, and for methods that tell presence only of their own test; the share of
unmarked images that pass tells whether to believe them.

## Under attack

{codec_of(robustness)}{older}
TPR at an exact FPR of 0.1%, mean over strengths, with the exact 95% interval of all pictures; the best of
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


def codec_of(document: dict[str, Any]) -> str:
    """Which codec `diffmark` is in a run, as a sentence."""
    modes = [
        method["sampling"]["injection"]["mode"]
        for method in document["config"]["methods"]
        if method["method"] == "diffmark"
    ]
    return f"`diffmark` is the generation layer alone, with the codec {CODECS[modes[0]]}." if modes else ""


def generated_section(folder: Path) -> str:
    """DiffMark's own line of the clean table in words; nothing while it was not measured."""
    path = folder / "clean.json"
    if not path.exists():
        return ""
    rows = json.loads(path.read_text())["rows"]
    row = next(row for row in rows if row["method"].startswith("diffmark"))
    loose, strict = row["tpr_0.001_exact"], row["tpr_1e-06_exact"]
    return f"""On {row["images"]:,} generated images of unseen prompts and seeds (50 DDIM steps, guidance 4):
bit accuracy {row["bit_accuracy"]:.4f} at {row["psnr"]:.1f} dB; marked at FPR 1e-3 {rate_cell(loose)}, at 1e-6
{rate_cell(strict)}. Of {row["negatives"]:,} unmarked ones {loose["observed_fpr"]:.2%} pass at 1e-3 and
{strict["observed_fpr"]:.2%} at 1e-6 (`diffmark evaluate clean`, results/evaluation/clean.json).

"""


def clean_table(rows: list[dict[str, Any]]) -> str:
    """A line a method, with what the paper states of it."""
    rates = ["TPR at FPR 1%, empirical", "at 0.1%, exact (unmarked that pass)", "at 1e-6, exact"]
    looks = ["PSNR", "SSIM", "distance", "Frechet (unmarked)"]
    heads = ["method", "bits", "images", "bit accuracy", *rates, "AUC", "negatives", *looks]
    heads.append("the paper's, on SD 1.5: bits, TPR at 0.1%, PSNR")
    lines = []
    for row in rows:
        accuracy = f"{row['bit_accuracy']:.4f}" if "bit_accuracy" in row else "presence only"
        names = ("0.01_empirical", "0.001_exact", "1e-06_exact")
        rates = [rate_cell(row.get(f"tpr_{name}")) for name in names]
        if "tpr_0.001_exact" in row:
            rates[1] += f" ({row['tpr_0.001_exact']['observed_fpr']:.2%})"
        cells = [row["method"], str(row["bits"]), str(row["images"]), accuracy, *rates]
        cells += [f"{row['auc']:.4f}", str(row["negatives"])]
        cells += [f"{row['psnr']:.1f}", f"{row['ssim']:.3f}", f"{row['distance']:.3f}"]
        cells += [f"{row['frechet']:.2f} ({row['frechet_unmarked']:.2f})", _in_paper(row["method"])]
        lines.append(cells)
    return table(heads, lines)


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
    """Attacks against DiffMark and the paper's methods, with its figures, or against others; the average first."""
    listed = PAPER["robustness"]["methods"]
    methods, lines = robustness_lines(rows)
    chosen = [
        number
        for number, name in enumerate(methods, start=1)
        if (name in listed or name.startswith("diffmark")) == theirs
    ]
    if not chosen:
        return ""
    by = {row["attack"]: row.get("by") for row in rows}
    shown = []
    for line in lines:
        attack = str(line[0])
        best = max((c["value"] for c in line[1:] if c and c["value"] is not None), default=None)
        cells = []
        for i in chosen:
            stated = PAPER["robustness"].get(attack)
            cells.append(
                _cell(line[i], best)
                + (
                    f" ({stated[listed.index(methods[i - 1])]:.2f})"
                    if stated and methods[i - 1] in listed
                    else ""
                )
            )
        named = attack.replace("_", " ") + (f", by {by[attack]}" if by.get(attack) else "")
        shown.append([named, *cells])
    return table(["attack", *(methods[i - 1] for i in chosen)], shown)


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
    heads = ["reading an image", "ms", "times DiffMark's", "ms in a batch of 16", "times DiffMark's"]
    heads += ["stages, batch 1", "the paper's ms, L40S"]
    lines = []
    for name in dict.fromkeys(row["method"] for row in rows):
        one, many = cells[name, 1], cells[name, 16]
        times = [
            f"{value:.3g}" for row in (one, many) for value in (1000 * row["seconds_per_image"], row["ratio"])
        ]
        stages = ", ".join(f"{stage} {share:.0%}" for stage, share in one["stages"].items())
        lines.append([name, *times, stages, PAPER["latency"].get(name, "")])
    return f"\n## Reading time\n\nMethods take turns in one run.\n\n{table(heads, lines)}\n"


def rate_cell(rate: dict[str, float] | None) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]" if rate else "too few bits"
