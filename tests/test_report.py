"""The documentation of testing says what was measured, and refuses where nothing was."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from browser import barriers
from typer.testing import CliRunner

from diffmark import __version__
from diffmark.cli import app
from diffmark.reporting import collect, page

RESULTS = Path(__file__).parents[1] / "results"
run = CliRunner().invoke


@pytest.mark.parametrize("purpose", ["eu-code", "sb942"])
def test_every_rate_of_the_report_is_a_measured_one(tmp_path, purpose):
    done = run(app, ["report", "--for", purpose, "--results", str(RESULTS), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "report.json").read_text())
    measured = json.loads((RESULTS / "pixel_robustness.json").read_text())["results"]["pixel"]["cells"]
    assert {row.pop("attack"): row for row in document["detection"]} == measured
    assert all(
        0 <= row["interval_95"][0] <= row["rate"] <= row["interval_95"][1]
        for row in document["false_positives"]
    )
    kinds = document["false_positives_by_kind"]
    assert (
        sum(document["data"]["unmarked_kinds"][kind] for kind in kinds)
        == document["data"]["unmarked_pictures"]
    )
    text = (tmp_path / "report.html").read_text()
    assert all(html.escape(limit) in text for limit in document["limits"])
    assert "http" not in text


def test_results_of_another_version_are_named(tmp_path):
    for name in ("pixel_robustness", "pixel_negatives"):
        document = json.loads((RESULTS / f"{name}.json").read_text())
        document["versions"]["diffmark"] = "0.0.7" if name == "pixel_negatives" else __version__
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    document = collect(tmp_path, "eu-code")
    assert document["data"]["other_versions"] == {"pixel_negatives": "0.0.7"}
    assert "another one: pixel_negatives of 0.0.7." in page(document)
    assert "fingerprint" not in document


def test_without_results_there_is_no_report(tmp_path):
    with pytest.raises(ValueError, match="pixel_robustness.json"):
        collect(tmp_path, "eu-code")
    with pytest.raises(ValueError, match="eu-code or sb942"):
        collect(RESULTS, "other")


def test_visibility_is_a_table_in_words():
    text = page(collect(RESULTS, "sb942"))
    assert (
        "<td>SSIMULACRA2 (90 cannot be told from the original, 70 is high quality)</td><td>mean</td>" in text
    )
    assert "<td>5th percentile</td>" in text
    assert "percentile_" not in text


def test_axe_finds_nothing_in_the_report(tmp_path, chromium, axe):
    run(app, ["report", "--for", "eu-code", "--results", str(RESULTS), "--out", str(tmp_path)])
    tab = chromium.new_page()
    tab.goto((tmp_path / "report.html").as_uri())
    assert barriers(tab, axe) == []
    tab.close()
