"""The repository's habits: workflows, slow tests, dates, one version, a walk that names files that exist."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import yaml

import diffmark

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def between(name: str, text: str) -> str:
    """What stands between the two comments of a name."""
    found = re.search(rf"(?s)<!-- {name} -->\n(.*?)<!-- end {name} -->", text)
    assert found, name
    return found[1]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_valid_and_run_what_exists(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["name"]
    assert workflow[True]  # YAML reads the key `on` as true
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        commands = [step["run"] for step in job["steps"] if "run" in step]
        assert commands
        for command in commands:
            assert command.split()[0] == "make", command
            assert set(command.split()[1:]) <= TARGETS, command


def test_workflows_lint_test_every_python_and_run_slow_tests_at_night():
    text = {path.name: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
    jobs = text["test.yml"]["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    assert {"run": "make lint"} in jobs["lint"]["steps"]
    assert text["nightly.yml"][True]["schedule"]
    assert {"run": "make test-slow"} in text["nightly.yml"]["jobs"]["slow"]["steps"]


def slow_tests() -> set[str]:
    """Every test with the marker `slow`, on it or on one of its parameters."""
    found = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and any(
                "mark.slow" in ast.unparse(mark) for mark in node.decorator_list
            ):
                found.add(f"{path.name}::{node.name}")
        assert not re.search(r"^pytestmark.*slow", path.read_text(), re.MULTILINE), path
    return found


def test_slow_tests_are_listed_with_what_they_guard():
    rows = re.findall(
        r"^\| `(\S+)` \| (.+) \|$", between("slow", (ROOT / "CONTRIBUTING.md").read_text()), re.MULTILINE
    )
    assert {name for name, _ in rows} == slow_tests()
    assert all(len(guarded) > 10 for _, guarded in rows)


def test_the_walk_names_files_that_exist_none_twice():
    walk = between("walk", (ROOT / "CONTRIBUTING.md").read_text())
    files = re.findall(r"`(src/\S+)`", walk)
    assert len(files) > 15
    assert len(set(files)) == len(files)
    assert not [name for name in files if not (ROOT / name).is_file()]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", walk, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_log_is_dated_newest_first():
    headings = re.findall(r"^## (.*)$", (ROOT / "LOG.md").read_text(), re.MULTILINE)
    dates = [heading.split(": ")[0] for heading in headings]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates), dates
    assert dates == sorted(dates, reverse=True)


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", diffmark.__version__)
    for path in (ROOT / "pyproject.toml", ROOT / "packages" / "diffmark-weights" / "pyproject.toml"):
        text = path.read_text()
        assert 'dynamic = ["version"]' in text
        assert diffmark.__version__ not in text
    assert f"## [{diffmark.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_no_big_file_but_weights_is_tracked():
    """The pictures of results/evaluation that were there before are the exception."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    big = {path.name for path in files if path.is_file() and path.stat().st_size > 2**20}
    assert {name for name in big if not name.endswith(".safetensors")} <= {"signal_pictures.png"}


def test_scripts_import_names_that_exist():
    """Of this package and of each other: nothing runs most of them in a test."""
    scripts = [path for room in ("benchmarks", "integrations") for path in (ROOT / room).rglob("*.py")]
    beside = {path.stem: path for path in (ROOT / "benchmarks").glob("*.py")}
    lost = []
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            if node.module.split(".")[0] == "diffmark":
                known = importlib.import_module(node.module)
                missing = [one.name for one in node.names if not has(known, one.name)]
            elif node.module in beside:
                text = beside[node.module].read_text()
                missing = [one.name for one in node.names if not re.search(rf"\b{one.name}\b", text)]
            else:
                continue
            lost += [f"{path.name}: {node.module}.{name}" for name in missing]
    assert len(scripts) > 50
    assert not lost


def has(module, name):
    """Whether `from module import name` works."""
    inside = hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}")
    return hasattr(module, name) or bool(inside)
