"""`diffmark key`: the operator's own keys, which marks are written and read with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.opening import Commands, Json, show

app = Commands(help="Make, show and rotate operator keys.", no_args_is_help=True)
Place = Annotated[Path | None, typer.Option(help="Ring file; operator.keys in your data folder by default.")]


@app.command()
def new(out: Place = None) -> None:
    """Make a ring with a fresh key, in a file that only you can read. A ring that is there is left alone."""
    from diffmark.keys.ring import new_ring, ring_path

    ring = new_ring(out or ring_path())
    typer.echo(f"{ring.current.id}  {ring.origin}")
    typer.echo("keep a copy in a safe place: without this file nobody can read its marks", err=True)


@app.command("show")
def show_ring(as_json: Json = False) -> None:
    """Show which keys commands use now, by their ids, and where they come from. Keys are never printed."""
    from diffmark.keys.ring import find_ring

    ring = find_ring()
    if as_json:
        show(
            {
                "writes": ring.current.id,
                "reads": list(ring.ids),
                "from": ring.origin,
                "public": ring.is_public,
            },
            True,
        )
    else:
        typer.echo(str(ring))


@app.command()
def rotate(file: Place = None) -> None:
    """Put a fresh key in front of a ring: it writes from now on, the older ones are still read.

    Every key of a ring is a try, which p-values count. A service has to be started again to see it.
    """
    from diffmark.keys.ring import ring_path
    from diffmark.keys.ring import rotate as rotate_ring

    ring = rotate_ring(file or ring_path())
    typer.echo(f"{ring.current.id}  {ring.origin}, older: {', '.join(ring.ids[1:])}")


@app.command("list")
def list_keys(file: Place = None, as_json: Json = False) -> None:
    """List the ids of a ring's keys, newest first, the day each was made, and what it is for."""
    from diffmark.keys.ring import find_ring, read_ring

    ring = read_ring(file) if file else find_ring()
    days = ring.days or ("",) * len(ring)
    uses = ["writes and reads", *["reads"] * len(ring.older)]
    rows = [
        {"id": key.id, "made": day, "use": use, "from": ring.origin}
        for key, day, use in zip(ring, days, uses, strict=True)
    ]
    show(rows, as_json)
