"""`diffmark vista`: thin commands over the package."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from diffmark.cli.vista import app
from diffmark.vista.paint import paint
from diffmark.vista.scenes import caption, random_scene


def test_paint_writes_the_scenes_of_its_seeds(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["paint", str(tmp_path / "sheet.png"), "--count", "2", "--seed", "5"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [caption(random_scene(5)), caption(random_scene(6))]
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert np.array_equal(sheet[:256, 256:512], paint(random_scene(6)))


def test_list_names_models_of_further_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "siblings" / "mine").mkdir(parents=True)
    (tmp_path / "siblings" / "mine" / "model_index.json").write_text("{}")
    monkeypatch.setenv("DIFFMARK_WEIGHTS", str(tmp_path))
    assert "mine" in CliRunner().invoke(app, ["list"]).output.split()


def test_train_runs_a_config_and_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "tiny.toml"
    loop = "[loop]\nsteps = 2\nbatch = 2\nlearning_rate = 1e-3\nlog_every = 1\n"
    config.write_text(f"scenes = 4\n{loop}")
    command = ["train", "classifier", str(config), "--runs", str(tmp_path / "runs"), "--stop", "1"]
    for steps in (1, 2):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert len((tmp_path / "runs/tiny/log.jsonl").read_text().splitlines()) == steps
    result = CliRunner().invoke(app, ["bundle", str(tmp_path / "runs/tiny/model"), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "diffusion_pytorch_model.safetensors").exists()


def test_evaluate_goes_on_with_the_pictures_that_are_there(tmp_path: Path) -> None:
    command = ["evaluate", "--steps", "1", "--cache", str(tmp_path / "cache")]
    kept = []
    for count in (2, 3):
        out = tmp_path / f"{count}.json"
        result = CliRunner().invoke(app, [*command, "--count", str(count), "--out", str(out)])
        assert result.exit_code == 0, result.output
        document = json.loads(out.read_text())
        assert document["config"]["count"] == count
        assert set(document["scores"]["alignment"]) >= {"time", "terrain", "house"}
        kept.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")})
    assert len(kept[0]) == 2
    assert len(kept[1]) == 3
    assert kept[0].items() <= kept[1].items()
