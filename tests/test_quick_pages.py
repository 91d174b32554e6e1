"""The first page and the four for the first five minutes, executed as far as they can be here."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import diffmark
from diffmark import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def page(tmp_path, monkeypatch, capsys):
    """Runs a page's Python and its `$ diffmark` lines in a folder with photographs: (names, what was printed)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    for name in ("photo.jpg", "photos/a.jpg", "photos/b.jpg"):
        Image.fromarray(noise).resize((512, 384)).save(name)

    def run(name):
        names = {}
        for block in re.findall(r"```(?:python)?\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL):
            commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
            if re.search(r"^(import|from|with|secrets) ?", block):
                exec(compile(block, name, "exec"), names)
            for command in commands:
                monkeypatch.setattr(sys, "argv", shlex.split(command))
                with pytest.raises(SystemExit) as stop:
                    cli.main()
                assert not stop.value.code, command
        return names, capsys.readouterr().out

    return run


def test_start(page):
    """In the order of the page: a registry, its operator key, an account that is named."""
    names, said = page("start.md")
    assert names["found"].verdict == "marked"
    assert "shared.png: user-42, family-wise error" in said
    assert re.search(r"operator key \w{8}, from .+operator.keys\s*$", said)


def test_photographs(page):
    _, said = page("quick-photographs.md")
    assert said.rstrip().endswith("marked")
    records = [json.loads(line) for line in Path("marked/images.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert all(diffmark.detect(record["file"], record["secret"]).marked for record in records)


def test_a_pipeline(page):
    names, said = page("quick-pipeline.md")
    assert said.strip() == "marked"
    for image, secret in zip(names["images"], names["secrets"], strict=True):
        assert diffmark.detect(image, secret).marked
    assert "decode" not in vars(names["pipe"].vae)


def test_comfyui(page, tmp_path):
    """The folder is copied as the page says, and the marking part of the workflow is run."""
    text = (ROOT / "docs" / "quick-comfyui.md").read_text()
    (command,) = re.findall(r"^cp -r (\S+) ComfyUI/(\S+)$", text, re.MULTILINE)
    folder = tmp_path / "ComfyUI" / command[1]
    shutil.copytree(ROOT / command[0], folder)
    spec = importlib.util.spec_from_file_location("quick_comfyui", folder / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    sys.modules["quick_comfyui"] = package
    spec.loader.exec_module(package)
    workflow, done = json.loads((folder / "workflow.json").read_text()), {}
    done["6"] = (torch.rand(1, 192, 192, 3, generator=torch.Generator().manual_seed(0)),)  # VAE Decode
    for number in ("7", "8"):
        node = package.NODE_CLASS_MAPPINGS[workflow[number]["class_type"]]()
        inputs = {
            name: done[value[0]][value[1]] if isinstance(value, list) else value
            for name, value in workflow[number]["inputs"].items()
        }
        found = getattr(node, node.FUNCTION)(**inputs)
        done[number] = found["result"] if isinstance(found, dict) else found
    assert done["8"][1]


def test_a_service(page, monkeypatch, capsys):
    from fastapi.testclient import TestClient

    names, _ = page("quick-service.md")
    names["pipe"].set_progress_bar_config(disable=True)
    request, token = {"prompt": "green hills at noon"}, {"authorization": "Bearer sk-1"}
    answer = TestClient(names["app"]).post("/v1/images/generations", json=request, headers=token).json()
    image = base64.b64decode(answer["data"][0]["b64_json"])
    Path("picture.png").write_bytes(image)
    (command,) = re.findall(
        r"`diffmark (identify picture.png [^`]+)`", (ROOT / "docs/quick-service.md").read_text()
    )
    monkeypatch.setattr(sys, "argv", ["diffmark", *shlex.split(command)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert "picture.png: token-" in capsys.readouterr().out
