"""The wheel: what a user gets who installs the package without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
import diffmark
from diffmark.vista import load_pipeline, model_names
assert model_names() == ["vista", "vista-lcm"], model_names()
pipe = load_pipeline("vista-lcm")
image = pipe("green hills at noon above a lake", num_inference_steps=1, guidance_scale=2).images[0]
diffmark.Codec.from_pretrained("vista-final")
print(diffmark.__file__, image.size)
"""


@pytest.mark.slow
def test_the_wheel_has_all_that_the_main_job_needs(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        sizes = {info.filename: info.compress_size for info in file.infolist()}
        file.extractall(tmp_path / "installed")
    assert sum(size for name, size in sizes.items() if name.startswith("diffmark/vista/")) < 40e6
    assert not any("siblings" in name or name.startswith(("tests/", "baselines/")) for name in sizes)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    assert "(256, 256)" in done.stdout
