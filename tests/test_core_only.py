"""The core works without torch and its kin: it issues keys, marks, attacks, detects and identifies."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from processes import ENVIRONMENT, INSTALLED

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "programs" / "core_only.py"
DIFFUSION = "torch,diffusers,transformers,accelerate,safetensors,huggingface_hub,tqdm"
HEAVY = f"{DIFFUSION},galois,numba,pyarrow,kornia,matplotlib"


def outcome(*arguments: object, python: str = sys.executable, **options: object) -> dict:
    command = [python, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert "pip install 'diffmark[diffusion]'" in done.stderr  # what `generate` says
    return result


EXPECTED = {
    "codes": [0, 0, 0, 0, 0, 1, 0, 0],
    "verdict": "marked",
    "principal": "user-42",
    "library": "marked",
    "account": 7,
    "generate": 2,
    "loaded": [],
}


def test_the_core_needs_no_torch(tmp_path: Path) -> None:
    assert outcome(tmp_path, HEAVY, env=ENVIRONMENT) == EXPECTED


def test_the_service_and_bulk_detection_load_without_torch() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({DIFFUSION.split(',')}))\n"
        "import diffmark.server.app, diffmark.bulk.run, diffmark.c2pa\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


REFUSED = {
    "generate": "give either a PROMPT or --prompts FILE",
    "generate hills --layers pixel --codec vista": "the pixel layer alone needs no latent codec",
    "generate hills --principal u --secret 00": "--principal issues the secret",
    "generate hills --c2pa-cert missing": "c2pa",
    "evaluate colour": "no experiment 'colour'",
    "evaluate clean --methods magic": "no method 'magic'",
    "train dual --config missing.toml": "missing.toml",
    "calibrate --model vista --codec vista --images missing": "missing",
}


def test_arguments_are_checked_before_anything_heavy_is_imported() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({DIFFUSION.split(',')}))\n"
        "import json\n"
        "from typer.testing import CliRunner\n"
        "from diffmark.cli import app\n"
        f"for words in {list(REFUSED)}:\n"
        "    done = CliRunner().invoke(app, words.split(), env={'COLUMNS': '400'})\n"
        "    print(json.dumps([words, done.exit_code, f'{done.output} {done.exception}']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [words for words, _, _ in lines] == list(REFUSED)
    for words, exit_code, said in lines:
        assert exit_code, words
        assert REFUSED[words] in said, said
        assert "torch" not in said, words


def test_info_says_what_a_core_without_torch_can_do() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({DIFFUSION.split(',')}))\n"
        "from diffmark.cli.info import describe_installation\n"
        "print(describe_installation()['device'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert "pixel layer only" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_fresh_environment_with_the_core_alone(tmp_path: Path) -> None:
    """A real install of the wheel; needs a package index."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(ROOT)]
    subprocess.run(install, check=True, timeout=900, env=INSTALLED)
    listing = [python, "-m", "pip", "list", "--format=json"]
    listed = subprocess.run(listing, capture_output=True, text=True, env=INSTALLED, check=True)
    names = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert "diffmark" in names
    assert not names & set(HEAVY.split(","))
    (tmp_path / "work").mkdir()
    assert outcome(tmp_path / "work", python=python, cwd=tmp_path, env=INSTALLED) == EXPECTED
