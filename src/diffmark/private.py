"""Files with keys and secrets: where they lie, made for their owner alone, refused if others can read them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, Any

PRIVATE = 0o600


def data_folder() -> Path:
    """The user's own folder of DiffMark: operator keys, the registry, feedback, unless other places are named."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "diffmark"


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


def given(value: str, what: str) -> str:
    """A secret as an option gives it: itself, or "@FILE" for what a private file holds: no shell logs that."""
    if not value.startswith("@"):
        return value
    path = Path(value[1:])
    check_private(path, what)
    try:
        return path.read_text("utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: holds no text") from None


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
    """Make an empty private file unless there is one; what is in it stays."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE))


def open_private(path: Path, mode: str = "w", **options: Any) -> IO[Any]:
    """Open a file to be written anew, for its owner alone; a wider one that is there is narrowed first."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    os.fchmod(descriptor, PRIVATE)
    return os.fdopen(descriptor, mode, **options)
