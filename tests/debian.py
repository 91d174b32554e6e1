"""Debian packages that tests need: installed if we may."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def install(*packages: str) -> str | None:
    """Install the packages; None, or why they are not there."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "it is not installed, and installing it needs root and apt-get"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with open(Path(tempfile.gettempdir()) / "diffmark-apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes, and apt-get in one at a time
        for command in (
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
        ):
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode != 0:
                return f"{' '.join(command)} failed: {done.stdout[-500:]}"
    return None
