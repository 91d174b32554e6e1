"""`diffmark attack`: a distorted copy of a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def attack(
    name: Annotated[str, typer.Argument(help="The attack; 'list' shows all of them.")],
    image: Annotated[Path | None, typer.Argument(help="The picture to attack.")] = None,
    out: Annotated[
        Path | None, typer.Argument(help="Where to write the result (PNG, so nothing is added).")
    ] = None,
    strength: Annotated[float, typer.Option(min=0, max=1, help="0 is mild, 1 is harsh.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="For attacks that draw a place or noise.")] = 0,
) -> None:
    """Distort a picture as an attacker or the internet would."""
    from diffmark import attacks
    from diffmark.images import read_image

    if name == "list":
        for row in attacks.ATTACKS.values():
            typer.echo(f"{row.name:14} {row.kind:11} {row.low:g} to {row.high:g} {row.unit}")
        return
    if image is None or out is None:
        raise typer.BadParameter("give the picture and where to write the result")
    attacks.attack(name, read_image(image).image, strength, seed).save(out, "PNG")
