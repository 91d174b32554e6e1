"""`diffmark registry`: make, check, guard, back up and measure a registry."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.marks import KeyFile
from diffmark.cli.opening import Actor, Commands, Json, Reason, Url, default_url, opened, plain_errors, show

app = Commands(help="Make, check, guard, back up and measure a registry.", no_args_is_help=True)
Principal = Annotated[str, typer.Argument(help="A pseudonym.")]
Role = Annotated[str, typer.Argument(help="operator, auditor or investigator.")]


@app.command()
def init(key: KeyFile = None, registry: Url = None, actor: Actor = None) -> None:
    """Make a registry, or bring an old one up to date. Whoever makes it holds all roles.

    It gets operator keys from its start: those that are given, or a ring of your own, made if there is none.
    """
    from diffmark.registry.operator_key import registry_ring

    with opened(registry, actor) as opened_registry:
        ring = registry_ring(opened_registry, key)
        typer.echo(f"{opened_registry.store.place}: {len(opened_registry)} keys")
        typer.echo(f"marks: {ring}")


@app.command()
def verify(
    anchor: Annotated[
        str | None, typer.Option(help="Head that an earlier verify printed: must still be in the log.")
    ] = None,
    registry: Url = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Check that no audit entry was edited, removed or reordered, and that no key is missing.

    Exit code 0: all is as it was written; 1: something is not.
    """
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        result = opened_registry.verify(anchor)
    if as_json:
        show(
            {"ok": result.ok, "entries": result.entries, "head": result.head, "problems": result.problems},
            True,
        )
    else:
        typer.echo(f"{result.entries} entries, head {result.head}")
        for problem in result.problems:
            typer.echo(f"PROBLEM: {problem}")
        typer.echo("the log is whole" if result.ok else "the log was tampered with")
    raise typer.Exit(0 if result.ok else 1)


@app.command()
def log(
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = 20,
    registry: Url = None,
    actor: Actor = None,
    as_json: Json = False,
) -> None:
    """Print the latest audit entries; this, too, is written down."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        entries = opened_registry.log(last)
    rows = [
        {
            "entry": entry.seq,
            "time": f"{datetime.fromtimestamp(entry.time / 1e6, timezone.utc):%Y-%m-%d %H:%M:%S}",
            "actor": entry.actor,
            "role": entry.role,
            "action": entry.action,
            "reason": entry.reason,
            "query": entry.query_digest[:12],
            "result": entry.result_digest[:12],
        }
        for entry in entries
    ]
    show(rows, as_json)


@app.command()
def backup(
    path: Annotated[Path, typer.Argument(help="File to write; must not exist.")],
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Write everything to one file, as of one moment, while the registry stays in use."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        from diffmark.registry.backup import backup as write_backup

        count = write_backup(opened_registry, path, reason)
    typer.echo(f"{path}: {count} keys")


@app.command()
def restore(
    path: Annotated[Path, typer.Argument(help="A backup.")],
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Fill a new registry from a backup; also the way from SQLite to PostgreSQL and back."""
    with plain_errors():
        from diffmark.registry.backup import restore as read_backup

        count = read_backup(path, registry or default_url(), actor, reason)
    typer.echo(f"restored {count} keys")


@app.command()
def grant(
    to: Annotated[str, typer.Argument(help="Who gets the role.")],
    role: Role,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take it away instead.")] = False,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Give a role that you hold to somebody, or take it away."""
    with opened(registry, actor, cache=False) as opened_registry:
        change = opened_registry.access.withdraw if withdraw else opened_registry.access.grant
        change(to, role, reason)
    typer.echo(f"{to} {'no longer holds' if withdraw else 'holds'} the role {role}")


@app.command()
def identity(
    principal: Principal, name: str, registry: Url = None, actor: Actor = None, reason: Reason = ""
) -> None:
    """Seal who is behind a pseudonym (operator; the key comes from DIFFMARK_IDENTITY_KEYS)."""
    with opened(registry, actor, cache=False) as opened_registry:
        opened_registry.identities.set(principal, name, reason)
    typer.echo(f"sealed the identity of {principal}")


@app.command()
def request(principal: Principal, registry: Url = None, actor: Actor = None, reason: Reason = "") -> None:
    """Ask for approval to resolve a pseudonym (investigator, with --reason)."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        typer.echo(f"request {opened_registry.identities.request(principal, reason)}")


@app.command()
def approve(number: int, registry: Url = None, actor: Actor = None, reason: Reason = "") -> None:
    """Approve somebody else's request."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        opened_registry.identities.approve(number, reason)
    typer.echo(f"approved request {number}")


@app.command("require-approval")
def require_approval(role: str, registry: Url = None, actor: Actor = None, reason: Reason = "") -> None:
    """From now on resolving needs somebody else in this role; "" for nobody."""
    with opened(registry, actor, cache=False) as opened_registry:
        opened_registry.identities.require_approval(role, reason)
    typer.echo(f"resolving needs the approval of an {role}" if role else "resolving needs no approval")


@app.command()
def resolve(principal: Principal, registry: Url = None, actor: Actor = None, reason: Reason = "") -> None:
    """Print who is behind a pseudonym (investigator, with --reason)."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        typer.echo(opened_registry.identities.resolve(principal, reason))


@app.command("new-key")
def new_key() -> None:
    """Print a fresh key for DIFFMARK_IDENTITY_KEYS."""
    from diffmark.registry.identities import new_sealing_key

    typer.echo(new_sealing_key())


@app.command()
def rotate(registry: Url = None, actor: Actor = None, reason: Reason = "") -> None:
    """Seal all identities anew with the first key of DIFFMARK_IDENTITY_KEYS."""
    with opened(registry, actor, existing=True, cache=False) as opened_registry:
        typer.echo(f"sealed {opened_registry.identities.rotate(reason)} anew")


@app.command()
def bench(
    keys: Annotated[
        float, typer.Option(help="How many random keys, such as 1e6; 8 bytes each, 32 with the index.")
    ] = 1e6,
    seed: Annotated[int, typer.Option(help="Of the keys and queries.")] = 0,
    index: Annotated[bool, typer.Option(help="Also measure the in-memory index.")] = True,
    as_json: Json = False,
) -> None:
    """Measure how fast random keys are searched here, against reading them from memory."""
    import numpy as np

    from diffmark.registry.bench import bench as measure

    drawn = np.random.default_rng(seed).integers(0, 2**64, int(keys), dtype=np.uint64)
    rows = list(measure(drawn, seed, index=index))
    if not as_json:
        rows = [
            {"what": row["what"], "ms": f"{row['ms']:.3f}", "times the limit": f"{row['times_limit']:.2f}"}
            for row in rows
        ]
    show(rows, as_json)


@app.command()
def experiment(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help=".npz files with logits (n, 64, 2) and secrets (n, 64), one a curve."),
    ] = None,
    simulate: Annotated[
        list[float] | None,
        typer.Option(help="Also simulate independent errors at this rate; may be repeated."),
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="Images to simulate.")] = 1000,
    largest: Annotated[float, typer.Option(help="Largest database; sizes are 10, 100, ... up to it.")] = 1e6,
    sum_of: Annotated[
        list[int] | None,
        typer.Option("--together", min=1, help="Sum this many images a secret; may be repeated."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Databases drawn for each size.")] = 10,
    rate: Annotated[float, typer.Option(help="Family-wise error of the open set.")] = 1e-6,
    seed: Annotated[int, typer.Option(help="Of databases and simulations.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="JSON to write; a .png of the same name is plotted.")
    ] = None,
) -> None:
    """Identification against the number of keys: the paper's two tiers, closed and open set, hard and soft."""
    from diffmark.progress import track
    from diffmark.registry import experiment as module

    decoded = [module.read(path) for path in files or []]
    decoded += [module.simulate(ber, images, seed, max(sum_of or [1])) for ber in simulate or []]
    if sum_of:
        decoded = [module.together(one, count) for one in decoded for count in sum_of]
    if not decoded:
        raise ValueError("give files of logits, or --simulate with an error rate")
    sizes = [10**power for power in range(1, 20) if 10**power <= largest]
    rows = [
        row
        for one in decoded
        for row in track(module.run(one, sizes, trials, seed, rate), one.name, 2 * len(sizes))
    ]
    config = {
        "sources": [one.name for one in decoded],
        "sizes": sizes,
        "trials": trials,
        "seed": seed,
        "rate": rate,
    }
    if out is None:
        show(
            [
                {name: row[name] for name in ("source", "keys", "ranking", "top1", "expected_top1", "named")}
                for row in rows
            ],
            False,
        )
        return
    import json

    from diffmark.provenance import provenance

    out.write_text(
        json.dumps({**provenance("diffmark registry experiment", config), "rows": rows}, indent=1) + "\n"
    )
    module.plot(rows, out.with_suffix(".png"))
