"""`diffmark keys`: issue, revoke and look at keys."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.opening import Actor, Commands, Json, Reason, Url, opened, show

app = Commands(help="Issue keys to accounts, revoke them, and look at them.", no_args_is_help=True)
Moment = Annotated[
    str | None,
    typer.Option(help="When it ends: 2027-01-31, 2027-01-31T12:00+01:00, or 12h, 30d, 2y from now."),
]
KeyOption = Annotated[str | None, typer.Option("--key", help="One key, 16 hex digits or @FILE.")]
PrincipalOption = Annotated[str | None, typer.Option("--principal", help="All keys of this account.")]


@app.command()
def issue(
    principals: Annotated[list[str] | None, typer.Argument(help="Pseudonyms of the accounts.")] = None,
    principals_from: Annotated[
        Path | None, typer.Option("--from", help="File with one pseudonym a line.")
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="name=value, such as model=sd15; may be repeated.")
    ] = None,
    expires: Moment = None,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Give each account a new key and print it: `diffmark keys issue user-42`."""
    names = list(principals or [])
    if principals_from:
        names += [line.strip() for line in principals_from.read_text("utf-8").splitlines() if line.strip()]
    if not names:
        raise ValueError("name at least one account, or a file of them with --from")
    pairs = dict(_pair(text) for text in context or [])
    with opened(registry, actor) as opened_registry:
        keys = opened_registry.issue_many(names, context=pairs, expires=moment(expires), reason=reason)
    if as_json:
        show([{"principal": key.principal, "key": key.hex, "id": key.id} for key in keys], True)
    else:
        typer.echo("\n".join(f"{key.principal}  {key.hex}" for key in keys))


@app.command()
def revoke(
    key: KeyOption = None,
    principal: PrincipalOption = None,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """End the use of a key, or of all keys of an account; images that carry it are still identified."""
    with opened(registry, actor, existing=True) as opened_registry:
        count = opened_registry.revoke(key=_given(key), principal=principal, reason=reason)
    typer.echo(f"revoked {count}")


@app.command()
def expire(
    when: Annotated[
        str, typer.Argument(help="2027-01-31, 2027-01-31T12:00+01:00, or 12h, 30d, 2y from now.")
    ],
    key: KeyOption = None,
    principal: PrincipalOption = None,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Set when a key, or all keys of an account, expire."""
    with opened(registry, actor, existing=True) as opened_registry:
        count = opened_registry.expire(moment(when) or 0, key=_given(key), principal=principal, reason=reason)
    typer.echo(f"set for {count}")


@app.command("list")
def list_keys(
    principal: PrincipalOption = None,
    after: Annotated[int, typer.Option(help="Start after this id.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Print keys in the order of issue."""
    with opened(registry, actor, existing=True) as opened_registry:
        keys = opened_registry.list_keys(principal=principal, after=after, limit=limit, reason=reason)
    rows = [asdict(key) for key in keys]
    if not as_json:
        for row in rows:
            row.update({name: _shown(row[name]) for name in ("created", "expires", "revoked")})
    show(rows, as_json)


@app.command("import")
def import_keys(
    path: Annotated[Path, typer.Argument(help=".csv or .parquet with a column `key` of 16 hex digits.")],
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Add keys that were made elsewhere: all of the file, or nothing."""
    with opened(registry, actor) as opened_registry:
        from diffmark.registry.exchange import import_file

        ids = import_file(opened_registry, path, reason)
    typer.echo(f"imported {len(ids)}")


@app.command()
def export(
    path: Annotated[Path, typer.Argument(help=".csv or .parquet to write.")],
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Write all keys to a file."""
    with opened(registry, actor, existing=True) as opened_registry:
        from diffmark.registry.exchange import export_keys

        count = export_keys(opened_registry, path, reason)
    typer.echo(f"exported {count}")


@app.command()
def stats(registry: Url = None, actor: Actor = None, as_json: Json = False) -> None:
    """Print how many keys there are, and of what status."""
    with opened(registry, actor, existing=True) as opened_registry:
        show(opened_registry.stats(), as_json)


def moment(text: str | None) -> int | None:
    """Microseconds since 1970 of a date, or of a time from now such as 30d."""
    if text is None:
        return None
    if span := re.fullmatch(r"(\d+)([hdy])", text):
        seconds = int(span[1]) * {"h": 3600, "d": 86400, "y": 31557600}[span[2]]
        return (time.time_ns() // 1000) + seconds * 1_000_000
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"a time is written 2027-01-31, 2027-01-31T12:00, 12h, 30d or 2y, got {text!r}"
        ) from error
    date = date if date.tzinfo else date.replace(tzinfo=timezone.utc)
    return int(date.timestamp() * 1_000_000)


def _given(key: str | None) -> str | None:
    from diffmark.private import given

    return None if key is None else given(key, "keys")


def _shown(value: int | None) -> str | None:
    return None if value is None else f"{datetime.fromtimestamp(value / 1e6, timezone.utc):%Y-%m-%d %H:%M}"


def _pair(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"context is written name=value, got {text!r}")
    return name, value
