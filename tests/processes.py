"""Other processes that run this code, for tests of what happens between and to processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import diffmark

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(diffmark.__file__).parents[1])}
INSTALLED = {
    name: value for name, value in os.environ.items() if name != "PYTHONPATH"
}  # what is installed alone


def start(program: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python on a program text, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **options,
    )
