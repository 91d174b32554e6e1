"""What README and docs say is what results/ and the commands say."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from diffmark.evaluation.harness import Extent

ROOT = Path(__file__).parents[1]


PAGES = [
    "README.md",
    "docs/baselines.md",
    "docs/law.md",
    "docs/payloads.md",
    "docs/pipelines.md",
    "docs/pixel.md",
    "docs/registry.md",
    "docs/results.md",
    "docs/service.md",
    "docs/training.md",
    "src/diffmark/codecs/vista/README.md",
    "src/diffmark/codecs/vista-persistent/README.md",
]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Scripts import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_payload_table_can_be_computed_again():
    """One cell of the table, with fewer draws."""
    import numpy as np

    from diffmark.payload.scheme import PayloadScheme

    module = load("payload_table")
    rows = json.loads((ROOT / "results" / "payload_table.json").read_text())["rows"]
    (cell,) = [r for r in rows if r["payload_bits"] == 24 and r["bit_error_rate"] == 0.05]
    rate = module.soft_rate(PayloadScheme(bytes(32), 64, 24, 0, 12), 0.05, 200, np.random.default_rng(1))
    assert abs(rate - cell["read_soft"]) < 0.06


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_show_their_results(page):
    text = (ROOT / page).read_text()
    assert load("readme_results").PAGES[page](text) == text, "run `make results`"


def test_all_pages_with_tables_from_results_are_checked():
    assert list(load("readme_results").PAGES) == PAGES
    assert "exact search among 1e8 keys" in (ROOT / "docs" / "results.md").read_text()
    assert "| 33 + 12 | 3 |" in (ROOT / "docs" / "payloads.md").read_text()
    assert "| **DiffMark, pixel layer** | 64 |" in (ROOT / "README.md").read_text()


def test_the_picture_is_the_one_that_was_measured():
    picture = (ROOT / "docs" / "images" / "example.webp").read_bytes()
    document = json.loads((ROOT / "results" / "readme_picture.json").read_text())
    assert hashlib.sha256(picture).hexdigest() == document["picture_sha256"]
    assert len(picture) < 300_000


def test_the_evaluation_fills_the_results_page_once_there_is_a_full_run(tmp_path):
    """Made-up rows give both tables, with the pictures behind them; no run gives nothing."""
    module = load("evaluation_tables")
    assert module.evaluation_section(tmp_path) == ""
    rate = {"value": 0.5, "low": 0.4, "high": 0.6}
    passed = rate | {"observed_fpr": 0.002}
    quality = {"psnr": 33.0, "ssim": 0.95, "distance": 0.1, "frechet": 2.0, "frechet_unmarked": 1.5}
    names = {"distance_network": "a network", "frechet_network": "another", "auc": 0.99, "negatives": 10_000}
    clean = [
        {"method": "a", "bits": 64, "bit_accuracy": 0.9, "tpr_0.01_empirical": rate, "tpr_1e-06_exact": rate},
        {"method": "tree-ring", "bits": 0, "tpr_0.01_empirical": rate, "tpr_0.001_exact": passed},
    ]
    attacked = [
        {"method": name, "attack": attack, "kind": kind, "images": 100, "by": by, "strength": strength}
        | {"tpr": {**rate, "value": value}}
        for attack, kind, by in (("jpeg", "distortion", None), ("adv_vae", "adversarial", "gradients"))
        for name, value, strength in (
            ("a", 0.2, 0.5), ("a", 0.4, 1.0), ("tree-ring", 0.7, 0.5), ("tree-ring", 0.7, 1.0),
            ("diffmark", 0.6, 0.5), ("diffmark", 0.6, 1.0),
        )
    ]  # fmt: skip
    timed = [
        {"method": "a", "batch": batch, "seconds_per_image": 0.01, "ratio": 2.0, "stages": {"rest": 1.0}}
        for batch in (1, 16)
    ]
    extent = asdict(Extent(marked=500))
    methods = [{"method": "diffmark", "sampling": {"injection": {"mode": "initial"}}}, {"method": "a"}]
    for name, rows in (
        ("clean", [row | quality | names | {"images": 500} for row in clean]),
        ("robustness", attacked),
        ("latency", timed),
    ):
        document = {
            "command": "diffmark",
            "config": {"extent": extent, "model": "tiny", "methods": methods},
            "rows": rows,
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    text = module.evaluation_section(tmp_path)
    assert text.count("`diffmark` is the generation layer alone, with the codec `vista`.") == 2
    assert "| a | 64 | 500 | 0.9000 | 0.500 [0.400, 0.600] | too few bits | 0.500 [0.400, 0.600] |" in text
    assert (
        "| tree-ring | 0 | 500 | presence only | 0.500 [0.400, 0.600] | 0.500 [0.400, 0.600] (0.20%) |"
        in text
    )
    assert "Pictures an attack and strength: 100 of a, tree-ring, diffmark" in text
    assert "diffmark is number 2 of 3 by the average of 2 attacks: 0.600, behind tree-ring (0.700)." in text
    assert "older than the corrections" not in text
    assert "| -, 1.000, 11.0 dB |" in text  # what the paper states of it
    assert (
        "| jpeg | **0.70** [0.63, 0.76] (0.74) | 0.60 [0.53, 0.67] (1.00) |" in text
    )  # who loses a cell is shown to lose it
    assert "| jpeg | 0.30 [0.24, 0.37] |" in text  # the best of all methods, not of a table
    assert "| adv vae, by gradients | **0.70** [0.63, 0.76] (0.29) | 0.60 [0.53, 0.67] (0.31) |" in text
    assert "| a | 10 | 2 | 10 | 2 | rest 100% |  |" in text
