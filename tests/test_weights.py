"""Weights outside the package: where they are found, and that they are the ones that are listed."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from processes import INSTALLED

from diffmark import weights
from diffmark.baselines.weights import baseline_folder
from diffmark.vista import library

ROOT = Path(__file__).parents[1]
CODE = """
import sys
from pathlib import Path
from diffmark import weights
from diffmark.baselines.weights import baseline_folder
from diffmark.vista import load_pipeline, model_names
assert {"vista-ink", "vista-oil", "vista-photographic", "vista-v"} < set(model_names()), model_names()
for name in model_names():
    image = load_pipeline(name)("green hills at noon", num_inference_steps=1).images[0]
for place in (Path(weights.__file__), baseline_folder("stegastamp")):
    assert place.is_relative_to(sys.prefix), place
print(image.size)
"""


@pytest.fixture(autouse=True)
def forgotten():
    """What was checked in another test is checked again."""
    weights.checked.cache_clear()
    yield
    weights.checked.cache_clear()


def test_the_manifest_lists_what_is_there():
    listed = json.loads(weights.manifest_of(weights.CLONE).read_text())["files"]
    assert weights.digests(ROOT) == listed, "run `make weights`"
    assert sum(name.endswith(".safetensors") for name in listed) >= 7


def clone(folder):
    """A folder that looks like a clone with one baseline."""
    place = folder / "baselines" / "stegastamp"
    place.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (place / name).write_text(name)
    manifest = folder / "packages" / "diffmark-weights" / "diffmark_weights" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"files": weights.digests(folder)}))
    return place


def test_other_weights_than_those_listed_are_refused(tmp_path, monkeypatch):
    place = clone(tmp_path)
    monkeypatch.setattr(weights, "CLONE", tmp_path)
    monkeypatch.setattr(weights, "PACKAGE", "diffmark_weights")
    assert baseline_folder("stegastamp") == place
    weights.checked.cache_clear()
    (place / "model.safetensors").write_text("others")
    with pytest.raises(weights.WeightsError, match=r"model\.safetensors: not the file that"):
        baseline_folder("stegastamp")
    (place / "model.safetensors").unlink()
    with pytest.raises(weights.WeightsError, match="and not there"):
        baseline_folder("stegastamp")


def test_a_folder_of_the_users_own_comes_first(tmp_path, monkeypatch):
    mine = tmp_path / "siblings" / "vista-oil"
    mine.mkdir(parents=True)
    (mine / "model_index.json").write_text("{}")
    assert library.model_folder("vista-oil") == ROOT / "siblings" / "vista-oil"
    monkeypatch.setenv("DIFFMARK_WEIGHTS", str(tmp_path))
    assert library.model_folder("vista-oil") == mine


@pytest.mark.slow
def test_both_wheels_are_found_in_a_venv(tmp_path):
    """Built and installed, without the repository: siblings and baselines are loaded from the venv."""
    for source in (ROOT, ROOT / "packages" / "diffmark-weights"):
        build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(source)]
        subprocess.run(build, check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", *map(str, tmp_path.glob("*.whl"))]
    subprocess.run(install, check=True, env=INSTALLED)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # The packages that both need are this interpreter's; an editable DiffMark is not found through this file.
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run(
        [str(python), "-c", CODE], capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert "(256, 256)" in done.stdout
