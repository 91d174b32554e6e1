"""A real Chromium for tests: Debian's, installed if it is missing and we may.

Where it cannot be had, tests that need it fail in CI and are skipped, with the reason, elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import pytest


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
