"""What the commands on a registry share: its options, and errors in one line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffmark.registry import Registry

Url = Annotated[
    str | None,
    typer.Option(
        "--registry",
        envvar="DIFFMARK_REGISTRY",
        help="URL: sqlite:///path, postgresql://..., clickhouse://...; a file in your data folder by default.",
    ),
]
Actor = Annotated[
    str | None, typer.Option(envvar="DIFFMARK_ACTOR", help="Who asks; the system's user by default.")
]
Reason = Annotated[str, typer.Option(help="Why; goes into the audit log.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def default_url() -> str:
    """The registry used when none is named."""
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return f"sqlite:///{folder / 'diffmark' / 'registry.db'}"


@contextmanager
def plain_errors() -> Iterator[None]:
    """An error of the registry ends in one line on stderr and exit code 2."""
    from diffmark.registry.errors import RegistryError

    try:
        yield
    except RegistryError as error:
        if os.environ.get("DIFFMARK_DEBUG"):
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def opened(url: str | None, actor: str | None, **options: Any) -> Iterator[Registry]:
    """The registry, closed again at the end."""
    with plain_errors():
        from diffmark.registry import Registry

        with Registry.open(url or default_url(), actor=actor, **options) as registry:
            yield registry


def show(value: Any, as_json: bool) -> None:
    """A dictionary or a list of them: as JSON, or as aligned lines for people."""
    if as_json:
        json.dump(value, sys.stdout)
        sys.stdout.write("\n")
        return
    if isinstance(value, dict):
        width = max(len(name) for name in value)
        for name, entry in value.items():
            typer.echo(f"{name:<{width}}  {'' if entry is None else entry}")
        return
    rows = [["" if cell is None else str(cell) for cell in row.values()] for row in value]
    if rows:
        rows.insert(0, list(value[0]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
