"""Weights that are not part of the package: further models of the embedded family, and trained baselines.

They lie in `siblings/NAME` and `baselines/NAME` below one of these, the first that has them: a folder that
DIFFMARK_WEIGHTS names (several are separated like PATH), the package diffmark-weights, a clone of the repository.
The last two have a manifest: what is loaded from them is checked against its digests.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
from pathlib import Path

FOLDERS_VARIABLE = "DIFFMARK_WEIGHTS"
CLONE = Path(__file__).parents[2]
PACKAGE = "diffmark_weights"
KINDS = ("siblings", "baselines")
MANIFEST = "manifest.json"


class WeightsError(ValueError):
    """A file of weights is not the one that the manifest lists."""


def roots() -> list[Path]:
    """Folders that may hold weights, in the order in which they are looked at."""
    named = [Path(part) for part in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if part]
    spec = importlib.util.find_spec(PACKAGE)
    installed = [Path(spec.origin).parent] if spec and spec.origin else []
    return [*named, *installed, CLONE]


def folders(kind: str) -> list[Path]:
    """The folders `siblings` or `baselines` that exist."""
    return [root / kind for root in roots() if (root / kind).is_dir()]


def manifest_of(root: Path) -> Path:
    """The manifest of a root; in a clone it lies in the sources of the wheel."""
    return root / MANIFEST if root != CLONE else CLONE / "packages" / "diffmark-weights" / PACKAGE / MANIFEST


def digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file of weights below a root, by its path."""
    files = [path for kind in KINDS for path in sorted((root / kind).rglob("*")) if path.is_file()]
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


@functools.cache  # once a process
def checked(folder: Path) -> Path:
    """The folder of one model, after its files were held against the manifest if its root has one."""
    root = folder.parents[1]
    manifest = manifest_of(root)
    if root in roots() and manifest.is_file():
        listed: dict[str, str] = json.loads(manifest.read_text())["files"]
        place = folder.relative_to(root).as_posix() + "/"
        for name in (name for name in listed if name.startswith(place)):
            path = root / name
            if not path.is_file():
                raise WeightsError(
                    f"{path}: listed in {manifest}, and not there; install diffmark-weights again"
                )
            if hashlib.sha256(path.read_bytes()).hexdigest() != listed[name]:
                raise WeightsError(
                    f"{path}: not the file that {manifest} lists; install diffmark-weights again, or, after "
                    "training, run `make weights`"
                )
    return folder


def write_manifest() -> Path:
    """The clone's manifest, made again."""
    manifest = manifest_of(CLONE)
    manifest.write_text(json.dumps({"files": digests(CLONE)}, indent=1) + "\n")
    return manifest


if __name__ == "__main__":
    print(write_manifest())
