"""The tables of README and docs from results/: `make results`; a test checks them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import payload_table
import survival_tables
from evaluation_tables import evaluation_section, generated_section, rate_cell
from markdown_tables import between, table
from pixel_attacks import COMBINED, HARSH, KEPT, MOVED
from pixel_tables import FPR, RIVALS, bits_table, speed_table, tables, titles

from diffmark.evaluation.summary import words

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
    heads, lines = ["200 unseen scenes, 64 bits", "bit accuracy", "marked at FPR 1e-3", "at 1e-6"], []
    for key, name in ATTACKS.items():
        row = results["attacks"][key]
        rates = [row[f"tpr_at_{rate}"] for rate in ("0.001", "1e-06")]
        cells = [f"{r['rate']:.3f} [{r['interval_95'][0]:.3f}, {r['interval_95'][1]:.3f}]" for r in rates]
        lines.append([name, f"{row['bit_accuracy']:.4f}", *cells])
    return table(heads, lines)


def search_table(rows: list[dict[str, Any]]) -> str:
    """Search among a hundred million keys, against reading them once."""
    found = {row["what"]: row for row in rows if row["keys"] == 10**8}
    lines = [[name, f"{found[name]['ms']:.3g}", f"{found[name]['times_limit']:.2f}"] for name in SEARCHES]
    return table(["exact search among 1e8 keys, one core", "ms", "times the time to read them once"], lines)


def growth_table(rows: list[dict[str, Any]]) -> str:
    """Every search at a million and at a hundred million keys, for docs/registry.md."""
    cells = {(row["what"], row["keys"]): row for row in rows}
    lines = []
    for name in dict.fromkeys(row["what"] for row in rows if row["what"] != "build index"):
        small, large = cells[name, 10**6], cells[name, 10**8]
        lines.append([name, f"{small['ms']:.3g}", f"{large['ms']:.3g}", f"{large['times_limit']:.2f}"])
    return table(["search", "1e6 keys", "1e8 keys", "times the limit at 1e8"], lines)


def rows_table(rows: list[dict[str, Any]]) -> str:
    """Issuing and searching straight from the rows, by the clock and by CPU time."""

    def cell(row: dict[str, Any]) -> str:
        unit, scale = ("s", 1) if row["seconds"] >= 1 else ("ms", 1000)
        rate = f", {row['keys_a_second'] / 1000:.0f} thousand keys/s" if "keys_a_second" in row else ""
        return f"{scale * row['seconds']:.3g} {unit} ({scale * row['cpu_seconds']:.2g} {unit} CPU){rate}"

    cells = {(row["what"], row["database"]): cell(row) for row in rows}
    names = dict.fromkeys(row["what"] for row in rows)
    return table(
        ["rows (`benchmarks/registry_store.py`)", "SQLite", "PostgreSQL"],
        [[name, cells[name, "sqlite"], cells[name, "postgresql"]] for name in names],
    )


def fill_registry(text: str) -> str:
    """docs/registry.md with the times of its searches and its rows."""
    for name, file, made in (
        ("search", "registry_search", growth_table),
        ("rows", "registry_store", rows_table),
    ):
        rows = json.loads((ROOT / "results" / f"{file}.json").read_text())["rows"]
        text = between(name, made(rows), text)
    return text


def fill_training(text: str) -> str:
    """docs/training.md with the ablations."""
    return between("ablations", ablation_table(ROOT / "results" / "ablations"), text)


def fill_baselines(text: str) -> str:
    """docs/baselines.md with what each method finds of its own marks."""
    rows = json.loads((ROOT / "results" / "evaluation" / "clean.json").read_text())["rows"]
    exact = "TPR at FPR 0.1%, exact (unmarked that pass)"
    heads, lines = ["method", "images", "bit accuracy", exact, "PSNR, same seed"], []
    for row in rows:
        passed = row["tpr_0.001_exact"]
        bits = f"{row['bit_accuracy']:.4f}" if "bit_accuracy" in row else ""
        found = f"{rate_cell(passed)} ({passed['observed_fpr']:.2%})"
        lines.append([row["method"], row["images"], bits, found, f"{row['psnr']:.1f} dB"])
    return between("alive", table(heads, lines), text)


def ablation_table(folder: Path) -> str:
    """A line for each run of configs/ablations, the base first; a run that a guard stopped says why."""
    heads, lines = ["run", "bit accuracy", "mean under attack", "marked at FPR 1e-3", "same-seed PSNR"], []
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stem != "base", path.stem)):
        document = json.loads(path.read_text())
        if "stopped" in document:
            why = f"stopped by a guard: {document['stopped'].split('. ')[0]}"
            lines.append([f"`{path.stem}`", why, "", "", ""])
            continue
        attacks, psnr = document["results"]["attacks"], document["results"]["psnr"]["mean"]
        clean = attacks.pop("none")
        mean = fmean(row["bit_accuracy"] for row in attacks.values())
        cells = [f"{clean['bit_accuracy']:.3f}", f"{mean:.3f}", f"{clean['tpr_at_0.001']['rate']:.2f}"]
        lines.append([f"`{path.stem}`", *cells, f"{psnr:.1f} dB"])
    return table(heads, lines)


def fill_results(text: str) -> str:
    """docs/results.md with the tables of the embedded model and the registry."""
    codec = json.loads((ROOT / "results" / "vista_final.json").read_text())
    search = json.loads((ROOT / "results" / "registry_search.json").read_text())
    psnr = codec["results"]["psnr"]
    said = f"""## The shipped codecs of the generation layer

{survival_tables.section()}
{survival_tables.persistent_section()}
### `vista-final`: a learned delta at z0

A codec of the paper's networks that marks z0 (injection `final`); same-seed PSNR is
{psnr["mean"]:.1f} dB (least {psnr["min"]:.1f}). It was measured on painted scenes, through the autoencoder and
image files. Brackets are exact 95% intervals, thresholds exact (45 and 51 of 64 bits). Crops cost it bits; the
pixel layer, which is written beside it, is searched for. All figures are in `results/vista_final.json`, made by
`diffmark train measure`.

{codec_table(codec["results"])}

{generated_section(ROOT / "results" / "evaluation")}\
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

    robustness = json.loads((ROOT / "results" / "pixel_robustness.json").read_text())
    seconds = json.loads((ROOT / "results" / "pixel_speed.json").read_text())["results"]["seconds"]
    said = f"{methods_table(robustness, seconds)}\n\n{generated_ranks()}"
    return readme_picture.fill(between("methods", said, text))


def generated_ranks() -> str:
    """The place of both layers among the methods that mark what a model generates."""
    rows = json.loads((ROOT / "results" / "evaluation" / "robustness.json").read_text())["rows"]
    first, lost = next(pair for pair in pairwise(words(rows)) if pair[0].startswith("diffmark-both"))
    return (
        f"Where the embedded model generates, both layers together: {first} {lost} Few pictures a cell so far; "
        "shares are at a false-positive rate of 0.1%: [docs/results.md](docs/results.md)."
    )


def methods_table(document: dict[str, Any], seconds: dict[str, float]) -> str:
    """How visible each method's mark is, what it survives and how long reading takes, on the same pictures."""
    robustness, called = document["results"], titles(document)
    groups = {
        "compressed, resized, noise, light": KEPT,
        "turned, mirrored, cropped, framed": MOVED,
        "several of these at once": COMBINED,
        "harsh": HARSH,
    }
    lines = []
    for name in ("pixel", *RIVALS):
        found = robustness[name]
        cells = [found["bits"], found["pictures"], f"{found['visibility']['ssimulacra2']['mean']:.0f}"]
        for attacks in groups.values():
            marked = [found["cells"][attack]["marked"] for attack in attacks if attack in found["cells"]]
            cells.append(f"{fmean(marked):.2f}" if marked else "")
        took = seconds.get("pixel, plain" if name == "pixel" else name)
        cells.append(_milliseconds(took) if took else "not measured")
        lines.append(["**DiffMark, pixel layer**" if name == "pixel" else called[name], *cells])
    counts = ", ".join(f"{len(attacks)} {name}" for name, attacks in groups.items())
    rate = f"1e-{-math.log10(FPR):.0f}"
    # The first pictures of each folder were seen while one constant was chosen; later runs skip them.
    tuned = (
        "nothing was tuned on them"
        if document["config"].get("skipped")
        else "not tuned on but for one constant"
    )
    earlier = (
        " Rows called earlier are of an earlier run." if any(called[name] != name for name in RIVALS) else ""
    )
    return table(["method", "bits", "pictures", "SSIMULACRA2", *groups, "read, ms"], lines) + (
        f"\n\nShare of pictures found at a false-positive rate of {rate}, mean over the attacks of a column "
        f"({counts}). SSIMULACRA2 of marked pictures: higher is less visible. Photographs and images of Stable "
        f"Diffusion 1.4 of 512 pixels, {tuned}; CPU time of one thread.{earlier} All rows, "
        "intervals and commands: [docs/pixel.md](docs/pixel.md), `results/pixel_robustness.json`, "
        "`results/pixel_speed.json`."
    )


def _milliseconds(seconds: float) -> str:
    """25.3, or 2,236."""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


def fill_pixel(text: str) -> str:
    """docs/pixel.md with its tables."""
    import pixel_negatives

    robustness, speed, negatives = (
        json.loads((ROOT / "results" / f"pixel_{name}.json").read_text())
        for name in ("robustness", "speed", "negatives")
    )
    unmarked = negatives["results"]
    made = tables(robustness) | {"pixel speed": speed_table(speed)}
    made |= {"pixel negatives": pixel_negatives.table(unmarked), "pixel bits": bits_table(unmarked)}
    for name, lines in made.items():
        text = between(name, lines, text)
    return text


def fill_pipelines(text: str) -> str:
    """docs/pipelines.md with its tables of results."""
    import pipeline_tables

    for name, make in (
        ("marking_cost", pipeline_tables.cost_table),
        ("pipeline_mark", pipeline_tables.writer_table),
    ):
        document = json.loads((ROOT / "results" / f"{name}.json").read_text())
        text = between(name.replace("_", " "), make(document), text)
    return text


def fill_payloads(text: str) -> str:
    """docs/payloads.md with its table."""
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
    "src/diffmark/codecs/vista/README.md": survival_tables.fill_card,
    "src/diffmark/codecs/vista-persistent/README.md": survival_tables.fill_persistent_card,
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
