"""A real Chromium for tests: Debian's, installed if it is missing and we may.

Where it cannot be had, tests that need it fail in CI and are skipped, with the reason, elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import pytest

AXE = "axe-core@4"


def load_screenshots() -> Any:
    """The script that takes the docs' pictures: it serves, launches and signs in as tests do."""
    path = Path(__file__).parents[1] / "benchmarks" / "page_screenshots.py"
    spec = importlib.util.spec_from_file_location("page_screenshots", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm or from the folder that DIFFMARK_AXE names."""
    folder = Path(os.environ.get("DIFFMARK_AXE") or tmp_path_factory.mktemp("axe"))
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        failure = "npm is not installed"
        if shutil.which("npm"):
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), AXE]
            done = subprocess.run(command, capture_output=True, text=True)
            failure = done.stderr[-500:]
        if not script.exists():
            if os.environ.get("CI") == "true":
                pytest.fail(f"axe-core is needed for these tests: {failure}")
            pytest.skip(f"NOT TESTED with axe-core: {failure}")
    return script.read_text()


def barriers(page: Any, axe: str) -> list[str]:
    """What axe-core finds on a page, all rules but those marked experimental."""
    page.evaluate(axe)  # evaluated by the debugger: the page's own policy forbids scripts from elsewhere
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A running browser."""
    pytest.importorskip("playwright", reason="NOT TESTED in a browser: playwright is not installed")
    failure = None if shutil.which("chromium") else debian.install("chromium", "fonts-dejavu-core")
    if failure:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Chromium is needed for these tests: {failure}")
        pytest.skip(f"NOT TESTED in a browser: {failure}")
    with load_screenshots().chromium() as browser:
        yield browser
