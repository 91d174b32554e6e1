"""`diffmark fingerprint`: pictures found again by likeness, where their mark cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.opening import Actor, Commands, Json, Reason, Url, opened, show

app = Commands(help="Look pictures up by likeness: a weaker basis than a mark.", no_args_is_help=True)


@app.command()
def log(
    image: Annotated[Path, typer.Argument(help="A marked image.")],
    key: Annotated[str, typer.Option("--secret", help="Hex of the issued key that it carries.")],
    url: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Keep the fingerprint of a marked image in the registry."""
    from diffmark.registry.fingerprints import Fingerprints

    with opened(url, actor, cache=False) as registry:
        kept = Fingerprints(registry)
        kept.log(image, key, reason)
        typer.echo(f"{image}  logged; {len(kept):,} fingerprints")


@app.command()
def find(
    images: Annotated[list[Path], typer.Argument(help="Images.")],
    url: Url = None,
    actor: Actor = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Whose marked picture looks like an image. Ask `diffmark identify` first: a mark says more.

    Exit code 0: all look like one that was marked; 1: at least one does not; 2: an error.
    """
    from diffmark.fingerprint import THRESHOLD
    from diffmark.registry.fingerprints import Fingerprints

    missing = False
    with opened(url, actor, existing=True, cache=False) as registry:
        kept = Fingerprints(registry)
        for image in images:
            match = kept.find(image, reason)
            missing |= match is None
            row = {"source": str(image), "basis": "fingerprint", "threshold": THRESHOLD}
            row |= (
                {"principal": match.principal, "distance": match.distance} if match else {"principal": None}
            )
            if as_json:
                show(row, True)
            else:
                said = (
                    f"looks like one of {match.principal} ({match.distance} of 256 bits differ)"
                    if match
                    else "like none"
                )
                typer.echo(f"{image}  {said}; by fingerprint, the weaker basis")
    raise typer.Exit(1 if missing else 0)
