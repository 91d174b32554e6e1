"""Files with keys and secrets: made for their owner alone, refused if others can read them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600


def is_private(path: Path) -> bool:
    """Whether nobody but its owner can read or write a file."""
    return os.name != "posix" or not path.stat().st_mode & 0o077


def check_private(path: Path, what: str) -> None:
    """Raise unless a file is there and only its owner can read it; `what` is what it holds."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of {what}")
    if not is_private(path):
        mode = path.stat().st_mode & 0o777
        raise PermissionError(
            f"{path}: others can read this file of {what} (mode {mode:o}): chmod 600 it first"
        )


def create_private(path: Path, text: str) -> None:
    """A new file that only its owner can read; one that is there is left alone and refused."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_private(path: Path, text: str) -> None:
    """Write a file for its owner alone; the old one stays until the new one is whole."""
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def touch_private(path: Path) -> None:
    """Make sure that a file is there and private; what is in it stays."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))
