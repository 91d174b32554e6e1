"""What the commands on a registry share: its options, and errors in one line."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

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
Json = Annotated[bool, typer.Option("--json", help="Print a JSON line for each row.")]


class Once(TyperCommand):
    """A command that refuses an option given twice, where one value would silently win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for parameter, times in Counter(given).items():
            if times > 1 and isinstance(parameter, TyperOption) and not _repeatable(parameter):
                raise typer.BadParameter(f"{parameter.opts[0]} is given {times} times and takes one value")
        return super().parse_args(ctx, args)


def _repeatable(option: TyperOption) -> bool:
    return bool(option.multiple or option.is_flag or option.count)


class Commands(typer.Typer):
    """A group of commands that take each option once."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Once} | options)


def default_url() -> str:
    """The registry used when none is named."""
    from diffmark.private import data_folder

    return f"sqlite:///{data_folder() / 'registry.db'}"


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
def opened(url: str | None, actor: str | None, existing: bool = False, **options: Any) -> Iterator[Registry]:
    """The registry, closed again at the end. It is made if it is not there, unless it has to be `existing`."""
    url = url or default_url()
    if existing:
        check_exists(url)
    with plain_errors():
        from diffmark.registry import Registry

        with Registry.open(url, actor=actor, **options) as registry:
            yield registry


def check_exists(url: str) -> None:
    """A file that was mistyped is not made by those who only want to read it."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if url.startswith("sqlite:///") and path not in ("", ":memory:") and not Path(path).exists():
        raise FileNotFoundError(
            f"{path}: there is no registry; `diffmark registry init`, or the first key that is issued, makes one"
        )


def show(value: Any, as_json: bool) -> None:
    """A dictionary or a list of them: a JSON line each, or aligned lines for people."""
    if as_json:
        for row in [value] if isinstance(value, dict) else value:
            typer.echo(json.dumps(row))
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
