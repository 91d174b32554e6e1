"""`diffmark secret`: make and read secrets and payload keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.opening import Commands
from diffmark.cli.payloads import read_scheme

app = Commands(help="Make secrets and payload keys, and show what a secret is.", no_args_is_help=True)


@app.command()
def new(
    length: Annotated[int, typer.Option(min=1, help="Bits.")] = 64,
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 1,
) -> None:
    """Print fresh secrets, one hex line each, from the operating system's random source."""
    from diffmark.secret import random_secrets, to_hex

    for bits in random_secrets(count, length):
        typer.echo(to_hex(bits))


@app.command()
def show(
    secret: Annotated[str, typer.Argument(help="Hex digits, or @FILE with them.")],
    length: Annotated[int | None, typer.Option(min=1, help="Bits, if not four a digit.")] = None,
    payload_key: Annotated[Path | None, typer.Option(help="Key file of the payload to read.")] = None,
    payload_bits: Annotated[str, typer.Option(help="Bits of account, nonce and check.")] = "20,13,12",
) -> None:
    """Print a secret as bits, number and bytes, and the payload in it."""
    from diffmark.private import given
    from diffmark.secret import from_hex, to_int

    digits = given(secret, "secrets")
    bits = from_hex(digits, length or 4 * len(digits))
    typer.echo(f"length {len(bits)}\nbits   {''.join(map(str, bits))}\nint    {to_int(bits)}")
    scheme = read_scheme(payload_key, payload_bits, len(bits))
    if scheme:
        payload = scheme.decode(2.0 * bits - 1)
        found = f"account {payload.account}, nonce {payload.nonce}, {payload.errors} bits corrected"
        typer.echo(f"payload {found if payload.verified else 'does not verify under this key'}")


@app.command()
def key(out: Annotated[Path, typer.Argument(help="File to write; must not exist.")]) -> None:
    """Write a new payload key to a file that only you can read."""
    from diffmark.payload.scheme import PayloadScheme
    from diffmark.private import create_private

    create_private(out, PayloadScheme.new_key().hex() + "\n")
    typer.echo(f"{out}: keep it secret and keep it safe; without it payloads cannot be read")
