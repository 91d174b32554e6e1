"""The helpers of the pixel layer's benchmarks: split, kinds of pictures, rows, figures, tables."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the scripts set them; undone after the test
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


def test_every_third_file_is_kept_apart(load, tmp_path):
    pictures = load("pictures")
    for number in range(7):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    test, tune = pictures.files(tmp_path, "test"), pictures.files(tmp_path, "tune")
    assert [path.name for path in test] == ["2.png", "5.png"]
    assert not set(test) & set(tune)
    assert len(test) + len(tune) == 7
    with pytest.raises(ValueError, match="a part is one of"):
        pictures.split([], "train")


def test_keys_are_fixed_and_differ(load):
    keys = load("pictures").fixed_keys(16)
    assert len({key.id for key in keys}) == 16
    assert [key.id for key in keys[:4]] == [key.id for key in load("pictures").fixed_keys(4)]


def test_a_run_goes_on_where_it_stopped(load, tmp_path):
    pictures = load("pictures")
    run = pictures.Run(tmp_path / "run", {"seed": 1}, pictures.READER)
    run.extend(lambda task: {"id": str(task)}, [0, 1], 1, str)
    with run.rows_path.open("a") as file:
        file.write('{"id": "2", "cut')
    made = []
    again = pictures.Run(tmp_path / "run", {"seed": 1}, pictures.READER)
    again.extend(lambda task: made.append(task) or {"id": str(task)}, [0, 1, 2, 3], 1, str)
    assert made == [2, 3]
    assert sorted(row["id"] for row in again.rows()) == ["0", "1", "2", "3"]
    for other in (({"seed": 1}, pictures.WRITER), ({"seed": 2}, pictures.READER)):
        foreign = pictures.Run(tmp_path / "run", *other)
        assert len(foreign.rows()) == 4  # they may be reported on
        with pytest.raises(ValueError, match="another code or config"):
            foreign.extend(lambda task: {"id": str(task)}, [4], 1, str)


def test_shares_of_the_tasks_are_all_of_them(load):
    of_share = load("pictures").of_share
    assert sorted(of_share(range(7), "1/2") + of_share(range(7), "2/2")) == list(range(7))


def test_pictures_of_the_corpus_are_told_by_their_number(load, tmp_path):
    corpus_module = load("pixel_corpus")
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (96, 96, 3), np.uint8)).save(folder / f"{number}.jpg")
    pages = tmp_path / "pages"
    pages.mkdir()
    for part in ("tune", "test"):
        Image.new("RGB", load("pixel_pages").PAGE, "white").save(pages / f"{part}-0000.png")
    corpus = corpus_module.Corpus((folder,), pages, None, seed=3)
    drawn = [corpus.draw(number, "tune") for number in range(40)]
    kinds = {picture.kind for picture in drawn}
    assert {"files", "windows of files", "web pages", "clip art"} <= kinds
    assert any(picture.attacks for picture in drawn)
    assert not all(picture.attacks for picture in drawn)
    assert all(picture.image.mode == "RGB" and min(picture.image.size) >= 16 for picture in drawn)
    again = corpus.draw(7, "tune")
    assert np.array_equal(np.asarray(again.image), np.asarray(drawn[7].image))


def test_pages_of_both_parts_have_other_text(load):
    page_html = load("pixel_pages").page_html
    tune, test = (page_html(part, np.random.default_rng(0)) for part in ("tune", "test"))
    assert tune != test
    assert "<style>" in tune


def _unmarked(count, rng, part="tune"):
    return [
        {
            "id": str(number),
            "part": part,
            "kind": "noise",
            "attacks": [],
            "jpeg": False,
            "key": number % 16,
            "evidence": float(rng.normal()),
            "view": False,
            "margins": rng.normal(size=64).tolist(),
            "seconds": 0.1,
        }
        for number in range(count)
    ]


def test_a_calibration_keeps_only_tails_that_it_can_know(load):
    module = load("pixel_negatives")
    rows = _unmarked(2000, np.random.default_rng(1))
    made = module.calibrate(rows, {"seed": 1})
    assert made["negatives"] == 2000
    assert min(p for p, _ in made["tail"]) == 5e-4
    apart = _unmarked(500, np.random.default_rng(2), "test")
    found = module.report(rows + apart, made, seed=1)
    assert found["reported_on"] == 500
    assert found["false_positives"]["0.0001"] is None
    low, high = found["false_positives"]["0.01"]["interval_95"]
    assert low <= 0.01 <= high
    assert found["with_secret"]["1e-06"]["matches_needed"] == 51


def test_a_leaning_bit_is_told(load):
    leaning = load("pixel_negatives").leaning
    margins = np.random.default_rng(3).normal(size=(400, 64))
    assert leaning(margins)["p_of_largest_z"] > 1e-3
    margins[:, 5] += 0.5
    assert leaning(margins)["p_of_largest_z"] < 1e-6
    margins[:, 6] = margins[:, 7]
    assert leaning(margins)["p_of_largest_correlation"] < 1e-6


def test_cells_and_tables_say_how_many_pictures_they_are_of(load, tmp_path):
    module = load("pixel_tables")
    visible = {"ssimulacra2": 86.0, "butteraugli_3": 0.8, "psnr": 43.0}
    shared = {"method": "pixel", "size": 512, "quality": None, "bits": 64}
    rows = [
        {**shared, "visibility": visible, "matches": {"nothing": 64, "JPEG 50": matches}}
        for matches in (64, 50)
    ]
    rows.append({**shared, "visibility": None, "matches": {"waves blur 1.0": 32}})
    found = module.summary(rows)
    cell = found["pixel"]["cells"]["JPEG 50"]
    assert cell["marked"] == 0.5  # 51 of 64 bits are needed at 1e-6
    assert cell["n"] == 2
    assert found["pixel"]["cells"]["waves blur 1.0"]["n"] == 1
    document = {"results": found, "config": {"skipped": 24}, "revision": "abc"}
    made = module.tables(document)
    assert "| JPEG 50 | 0.995 (1) | 0.891 (0.50) |" in made["pixel robustness"]
    assert "pixel (n = 2)" in made["pixel robustness"]
    assert "earlier" not in "".join(made.values())
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- pixel robustness -->\nold\n<!-- end pixel robustness -->\nb\n")
    load("pictures").fill(page, made)
    filled = page.read_text()
    assert "old" not in filled
    load("pictures").fill(page, made)
    assert page.read_text() == filled


def test_rows_of_an_earlier_run_are_called_so(load):
    module = load("pixel_tables")
    visible = {"ssimulacra2": 86.0, "butteraugli_3": 0.8, "psnr": 43.0}
    shared = {"size": 512, "quality": None, "bits": 64, "visibility": visible, "matches": {"JPEG 50": 64}}
    found = module.summary([{**shared, "method": name} for name in ("pixel", "rivaGan", "sd")])
    document = {"results": found, "config": {"skipped": 24}, "revision": "abc"}
    document["earlier"] = {"methods": ["sd"], "revision": "def"}
    made = module.tables(document)
    assert "Revision abc." in made["pixel run"]
    assert "*earlier* was measured by revision def, on other pictures" in made["pixel run"]
    assert "without the first 24 of each" in made["pixel run"]
    head = made["pixel robustness"].splitlines()[0]
    assert head == "| after | asked | pixel (n = 1) | rivaGan (n = 1) | sd, earlier (n = 1) |"
    assert [line.split("|")[1].strip() for line in made["pixel visibility"].splitlines()[2:]] == [
        "pixel", "rivaGan", "sd, earlier",
    ]  # fmt: skip
    assert made["pixel waves"] == "Not measured yet."
    document["config"] = {}  # the run of before: the same pictures, one constant chosen on some
    assert "the first of the same pictures" in module.about(document)
    assert "One constant is an exception" in module.about(document)


def test_times_stand_beside_what_was_asked(load):
    found = {
        "seconds": {
            "pixel, plain": 0.006,
            "pixel, whole search": 0.32,
            "marking 512 px": 0.28,
            "marking 12 Mpx": 1.8,
        },
        "ratios": {
            "plain read over rivaGan's decode": 0.004,
            "Tree-Ring's inversion over a plain read": 210.4,
        },
        "memory_100_mpx": {"with_the_picture_alone_mb": 1200.0, "peak_mb": 3400.0},
        "cold_start_seconds": {"1 marked file": 0.7, "20 marked files": 1.2},
        "load_average_before_and_after": [0.5, 1.0],
    }
    made = load("pixel_tables").speed_table({"results": found, "revision": "abc"})
    assert "| plain read | 6.0 ms |  |" in made
    assert "| marking 512 px | 0.28 s | 0.5 s |" in made
    assert "| Tree-Ring's inversion on Vista over a plain read | 210 | at least 100 |" in made
    assert "| `diffmark detect` from a cold start, 20 marked files | 1.20 s | 2 s |" in made
    assert "3,400 MB, 1,200 of them before" in made
    assert "Revision abc" in made


def test_every_asked_figure_is_an_attack_that_is_run(load, tmp_path):
    module = load("pixel_attacks")
    assert set(load("pixel_tables").ASKED) <= set(module.attacks(str(tmp_path)))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    for name, distort in module.attacks(None).items():
        assert distort(picture, np.random.default_rng(0)).mode == "RGB", name


def test_tasks_have_names_of_their_own(load):
    tasks = load("pixel_robustness").tasks_of(48, 12)
    assert len({task.name for task in tasks}) == len(tasks)
    assert {task.number for task in tasks if task.method == "pixel" and task.group == "figures"} == set(
        range(48)
    )


def test_pipelines_marks_are_compared_on_pictures_that_were_marked_both_ways(load):
    module, tables = load("pipeline_mark"), load("pipeline_tables")

    def row(number, writer, matches, quality):
        seen = {"ssimulacra2": quality, "butteraugli_3": 0.5, "psnr": 40.0}
        return {
            "number": number,
            "side": 256,
            "writer": writer,
            "matches": dict.fromkeys(module.ATTACKS, matches),
            **seen,
        }

    rows = [row(0, "pipelines", 64, 80), row(0, "embed", 32, 90), row(1, "pipelines", 40, 82)]
    rows += [row(1, "embed", 64, 86), row(2, "pipelines", 0, 0)]  # the last was not marked by the other
    first, second = module.summary(rows)
    assert (first["pictures"], first["writer"], first["ssimulacra2"]) == (2, "pipelines", 81)
    assert first["bit_accuracy"]["JPEG 10"] == 52 / 64
    assert first["marked"]["JPEG 10"] == 0.5
    assert (second["bit_accuracy"]["JPEG 10"], second["least_ssimulacra2"]) == (0.75, 86)
    line = tables.writer_table({"results": [first]}).splitlines()[-1]
    assert line.startswith("| 256 | pipelines | 2 | 81.0 / 80.0 | 0.50 | 0.812 (0.50) |")


def test_the_cost_of_marking_is_shares_of_the_generation(load):
    row = {
        "batch": 1,
        "rounds": 0,
        "seconds": {"pixel layer": 0.01, "reading back pixels": 0.002, "rest": 2.0},
        "marking_over_generation": 0.009,
        "generation_layer_over_generation": 0.003,
    }
    config = {"runs": 5, "seconds_of_patterns_once": 0.033}
    document = {"results": [row], "config": config, "revision": "abc"}
    lines = load("pipeline_tables").cost_table(document).splitlines()
    assert lines[2] == "| 1 | 0 | 0.9% | 0.5% | 0.1% | 0.3% |"
    assert lines[-1] == ("Revision abc, 5 runs a row. A key's patterns are derived once in a process: 33 ms.")
