"""docs/dependencies.md: what DiffMark stands on, with versions and licences: `python benchmarks/dependencies.py`.

What a package needs to run, and what is only for tests and comparisons. Licences are as the installed packages
state them. `make audit` holds the same versions against the known vulnerabilities, which needs a network.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from markdown_tables import table
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
SAME = re.compile(r"[-_.]+")
RUN_TIME = (
    "diffusion",
    "heif",
    "registry",
    "postgres",
    "clickhouse",
    "serve",
    "c2pa",
    "bulk",
)  # extras of operators
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def canonical(name: str) -> str:
    return SAME.sub("-", name).lower()


def needed(extras: tuple[str, ...]) -> set[str]:
    """Names of all packages that `pip install diffmark[extras]` brings, as far as they are installed."""
    waiting, found = [("diffmark", extras)], set()
    while waiting:
        name, wanted = waiting.pop()
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                continue
            child = canonical(requirement.name)
            if child not in found:
                found.add(child)
                waiting.append((requirement.name, tuple(requirement.extras)))
            elif child == "diffmark":
                waiting.append(("diffmark", tuple(requirement.extras)))
    return found - {"diffmark"}


def licence(name: str) -> str:
    """What an installed package says of its licence, in one line."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if about.get("License-Expression"):
        return about["License-Expression"]
    classified = [
        text.rsplit(" :: ", 1)[1] for text in about.get_all("Classifier", []) if text.startswith("License ::")
    ]
    named = [text for text in classified if text != "OSI Approved"]
    if named:
        return ", ".join(named)
    first = (about.get("License") or "").strip().splitlines()
    return first[0][:80] if first else "not stated"


def rows() -> list[tuple[str, str, str, bool]]:
    """(name, version, licence, whether an operator runs it) of every pinned package that is installed."""
    run_time = needed(RUN_TIME)
    found = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==", line):
            name = canonical(match[1])
            if stated := licence(name):
                found.append((name, metadata.version(name), stated, name in run_time))
    return sorted(set(found))


def page() -> str:
    lines = [
        "# Dependencies",
        "",
        "Made by `python benchmarks/dependencies.py` from the installed packages. `make audit` checks the pinned",
        "versions for known vulnerabilities with pip-audit, and fails if a package cannot be looked up. It has not",
        "passed for this list: the database of vulnerabilities was out of reach where the list was made.",
    ]
    for title, wanted in (("What an operator runs", True), ("For training, tests and comparisons", False)):
        chosen = [row[:3] for row in rows() if row[3] == wanted]
        lines += ["", f"## {title}", "", table(["package", "version", "licence"], chosen)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    strict = [name for name, _, stated, own in rows() if own and COPYLEFT.search(stated)]
    if strict:
        sys.exit(f"copyleft among what operators run: {', '.join(strict)}")
