"""Where a result comes from: versions and revision, for every JSON that is published."""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from diffmark import __version__

PACKAGES = (
    "torch",
    "diffusers",
    "transformers",
    "numpy",
    "pillow",
    "kornia",
    "numba",
    "SQLAlchemy",
    "faiss-cpu",
    "pyarrow",
    "ray",
    "fastapi",
    "c2pa-python",
)

PICTURES = (
    "--photographs",
    "--photos",
    "--pictures",
    "--images",
)  # options that name a folder of the user's own


def versions() -> dict[str, str]:
    """Of Python, DiffMark and the packages that results depend on, as far as they are installed."""
    return {
        "python": platform.python_version(),
        "diffmark": __version__,
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache  # asked for at the start of a long run, it stays what it was however the tree moves on
def revision() -> str | None:
    """The git revision of the source tree, with `+` if it has changes; None outside a repository."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def command_line() -> str:
    """This program's, with a word for the user's own pictures, and of files that lie elsewhere the name alone."""
    name, given = Path(sys.argv[0]).name, sys.argv[1:]
    shown = [
        "PHOTOGRAPHS" if option in PICTURES else Path(value).name if _lies_elsewhere(value) else value
        for option, value in zip(["", *given], given, strict=False)
    ]
    return shlex.join(["diffmark" if name == "__main__.py" else name, *shown])


def _lies_elsewhere(value: str) -> bool:
    """Whether an argument is a path out of the working folder."""
    return value.startswith(("/", "../", "~"))


def provenance(command: str, config: Any) -> dict[str, Any]:
    """The head of a result's JSON."""
    return {"command": command, "config": config, "versions": versions(), "revision": revision()}


def weights_digest(*modules: Any, half: bool = False) -> str:
    """A hash of all weights and buffers of some torch modules; rounded to half precision, it outlives saving so."""
    found = hashlib.sha256()
    for module in modules:
        for name, value in sorted(module.state_dict().items()):
            value = value.detach().cpu()
            found.update(name.encode())
            found.update((value.half() if half else value.float()).contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def code_digest(*modules: str) -> str:
    """A hash of what the code of some modules of this package says, whatever its layout and comments."""
    sources = [(Path(__file__).parent / f"{name}.py").read_text("utf-8") for name in modules]
    return hashlib.sha256("\n".join(ast.dump(ast.parse(text)) for text in sources).encode()).hexdigest()[:16]
