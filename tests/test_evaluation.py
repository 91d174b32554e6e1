from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from conftest import _build, tiny_codec
from PIL import Image

from diffmark.detection import Detector
from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.lab import Extent, Lab
from diffmark.evaluation.report import write_report
from diffmark.evaluation.results import run
from diffmark.evaluation.studio import Studio, batches, painted_scenes, photograph_crops, unseen_orders
from diffmark.generation import Sampling
from diffmark.injection import Injection
from diffmark.methods.base import Method
from diffmark.methods.diffmark import DiffMark
from diffmark.pipelines import load_pipeline

SMALL = Extent(marked=3, plain=2, scenes=3, photographs=2, attacked=2, strengths=(1.0,), timed=3)


class LastRow(Method):
    """A method that writes its bits into the last row of pixels: perfect on clean images, gone after any change."""

    name, bits = "last-row", 16

    def embed(self, image, secret):
        pixels = np.asarray(image).copy()
        pixels[-1, : self.bits] = 255 * secret[:, None]
        return Image.fromarray(pixels)

    def decode(self, images):
        rows = np.stack(
            [np.asarray(image.resize((64, 64)), float)[-1, : self.bits].mean(-1) for image in images]
        )
        return rows - 127.5


@pytest.fixture(scope="module")
def lab(tmp_path_factory, model_folder):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    sampling = Sampling(steps=2, guidance=2.0)
    photographs = tmp_path_factory.mktemp("photographs")
    Image.new("RGB", (90, 120), "olive").save(photographs / "a.jpg")
    studio = Studio(tmp_path_factory.mktemp("pictures"), pipe, "tiny", sampling)
    own = DiffMark(pipe, Detector(tiny_codec(injection=Injection("final")), _build("sd").pipe.vae), sampling)
    return Lab(studio, [own, LastRow()], SMALL, photographs)


def test_pictures_are_made_once(lab, monkeypatch):
    (order,) = unseen_orders(1, first=7)
    method = lab.methods[0]
    first = np.asarray(lab.studio.marked(method, order)), np.asarray(lab.studio.plain(order))
    monkeypatch.setattr(lab.studio, "pipe", None)
    monkeypatch.setattr(method, "pipe", None)
    again = np.asarray(lab.studio.marked(method, order)), np.asarray(lab.studio.plain(order))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(*first)


def test_orders_are_reproducible_and_unseen():
    first, second = unseen_orders(3), unseen_orders(2, first=1)
    assert [(o.prompt, o.seed) for o in first[1:]] == [(o.prompt, o.seed) for o in second]
    assert all(np.array_equal(a.secret, b.secret) for a, b in zip(first[1:], second, strict=True))
    assert not np.array_equal(first[0].secret, first[1].secret)
    fixed = unseen_orders(2, fixed_secret=True)
    assert np.array_equal(fixed[0].secret, fixed[1].secret)


def test_negatives_come_from_model_painter_and_photographs(lab):
    images = list(lab.negatives())
    assert len(images) == 2 + 3 + 2
    assert {image.size for image in images[2:]} == {(256, 256)}
    assert lab.negative_scores(lab.methods[1]).shape == (7,)
    assert [len(b) for b in batches(range(5), 2)] == [2, 2, 1]


def test_photographs_need_a_folder_with_photographs(tmp_path):
    with pytest.raises(ValueError, match="holds no photographs"):
        next(photograph_crops(tmp_path, 1))
    assert next(painted_scenes(1)).size == (256, 256)


@pytest.mark.parametrize("name", ["clean", "robustness", "keys", "latency", "averaging"])
def test_experiments_write_json_and_csv(lab, name, tmp_path):
    rows = run(name, lab, tmp_path)
    document = json.loads((tmp_path / f"{name}.json").read_text())
    assert document["rows"] == json.loads(json.dumps(rows))
    assert document["config"]["model"] == "tiny"
    assert document["versions"]["torch"]
    with (tmp_path / f"{name}.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert {row["method"] for row in rows} == {"diffmark", "last-row"}


def test_the_report_shows_every_experiment(lab, tmp_path):
    with pytest.raises(ValueError, match="holds no results"):
        write_report(tmp_path)
    names = [name for name in EXPERIMENTS if name != "transfer"]
    for name in names:
        run(name, lab, tmp_path)
    transfer = [
        {"method": "diffmark", "model": m, "attack": a, "bit_accuracy": 0.9}
        for m in ("a", "b")
        for a in (None, "blur")
    ]
    (tmp_path / "transfer.json").write_text(
        json.dumps({"command": "x", "config": {}, "versions": {}, "revision": None, "rows": transfer})
    )
    page = write_report(tmp_path).read_text()
    for name in EXPERIMENTS:
        assert f"<h2>{name}</h2>" in page
    assert page.count("data:image/png;base64") == len(EXPERIMENTS) - 1  # the clean table has no figure
    with Image.open(tmp_path / "robustness.png") as figure:
        assert figure.width > 1000
    assert "last-row" in page


def test_clean_tells_the_truth_about_a_known_method(lab):
    row = next(row for row in EXPERIMENTS["clean"](lab) if row["method"] == "last-row")
    assert row["bit_accuracy"] == 1.0
    assert row["tpr_0.001_exact"]["value"] == 1.0
    assert row["negatives"] == 7
    assert math.isfinite(row["psnr"])


def test_robustness_tells_the_truth_about_a_known_method(lab):
    rows = {row["attack"]: row for row in EXPERIMENTS["robustness"](lab) if row["method"] == "last-row"}
    assert rows["caption"]["tpr"] == 0.0  # the bar covers the last row
    assert rows["gamma"]["tpr"] == 1.0  # black and white stay what they are
    assert rows["rotation"]["value"] == 45


def test_averaging_finds_a_mark_that_is_always_the_same(lab):
    rows = [row for row in EXPERIMENTS["averaging"](lab) if row["method"] == "last-row"]
    fresh = [row for row in rows if row["secrets"] == "fresh" and row["aim"] == "forge"]
    same = [row for row in rows if row["secrets"] == "one" and row["aim"] == "forge"]
    assert np.mean([row["bit_accuracy"] for row in same]) > np.mean([row["bit_accuracy"] for row in fresh])


def test_unknown_experiment(lab, tmp_path):
    with pytest.raises(ValueError, match="no experiment 'magic'; there are clean"):
        run("magic", lab, tmp_path)
