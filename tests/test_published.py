"""What README and docs say is what results/ and the commands say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_payload_table_shows_its_results():
    rows = json.loads((ROOT / "results" / "payload_table.json").read_text())["rows"]
    page = (ROOT / "docs" / "payloads.md").read_text()
    assert load("payload_table").fill(page, rows) == page
    assert "| 33 + 12 | 3 |" in page


def test_the_payload_table_can_be_computed_again():
    """One cell of the table, with fewer draws."""
    import numpy as np

    from diffmark.payload import PayloadScheme

    module = load("payload_table")
    rows = json.loads((ROOT / "results" / "payload_table.json").read_text())["rows"]
    (cell,) = [r for r in rows if r["payload_bits"] == 24 and r["bit_error_rate"] == 0.05]
    rate = module.soft_rate(PayloadScheme(bytes(32), 64, 24, 0, 12), 0.05, 200, np.random.default_rng(1))
    assert abs(rate - cell["read_soft"]) < 0.06


def test_the_readme_shows_its_results():
    page = (ROOT / "README.md").read_text()
    assert load("readme_results").fill(page) == page, "run `python benchmarks/readme_results.py`"
    assert "exact search among 1e8 keys" in page
    page = (ROOT / "docs" / "registry.md").read_text()
    assert load("readme_results").fill_registry(page) == page, "run `python benchmarks/readme_results.py`"
