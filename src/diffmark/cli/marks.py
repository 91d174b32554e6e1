"""Which secret each image gets: the options that `generate` and `embed` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffmark.keys.ring import KeyRing, RingLike
    from diffmark.payload.scheme import PayloadScheme
    from diffmark.registry import Registry

SecretOption = Annotated[
    str,
    typer.Option(
        envvar="DIFFMARK_SECRET", help="Hex digits, @FILE with them, or 'random' for a fresh one an image."
    ),
]
Principal = Annotated[
    str | None, typer.Option(help="Issue a key of the registry an image, to this principal.")
]
PayloadKey = Annotated[
    Path | None, typer.Option(help="Write payloads under the key in this file (diffmark secret key).")
]
Account = Annotated[int | None, typer.Option(help="The account in the payload.")]
PayloadBits = Annotated[str, typer.Option(help="Bits of account, nonce and check.")]
KeyFile = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Operator keys: a ring file (mode 600), command:CMD that prints one, or public; by default "
        "DIFFMARK_KEY, DIFFMARK_KEY_FILE, DIFFMARK_KEY_COMMAND, or your own ring (diffmark key show).",
    ),
]
DEFAULT_BITS = "20,13,12"


def ring_for(registry: Registry | None, key: RingLike) -> KeyRing:
    """The operator keys of a command: those of its registry, if it has one, or those that are found."""
    from diffmark.keys.ring import as_ring

    if registry is None:
        return as_ring(key)
    from diffmark.registry.operator_key import registry_ring

    return registry_ring(registry, key)


def tell_key(ring: KeyRing) -> None:
    """Say on stderr which operator key is used."""
    typer.echo(str(ring), err=True)


def check_choice(secret: str, principal: str | None, payload_key: Path | None, account: int | None) -> None:
    """Whether these options name one source of secrets."""
    if (payload_key is None) != (account is None):
        raise typer.BadParameter("--payload-key and --account go together")
    if principal is not None and (secret != "random" or payload_key is not None):
        raise typer.BadParameter("--principal issues the secret: leave out --secret and --payload-key")
    if payload_key is not None and secret != "random":
        raise typer.BadParameter("a payload makes the secret itself: leave out --secret")


def secrets_for(
    count: int,
    length: int,
    secret: str,
    principal: str | None,
    scheme: PayloadScheme | None,
    account: int | None,
    registry: Registry | None,
    reason: str,
) -> Sequence[Any]:
    """Bits of one secret an image; with a principal, keys are issued for all of them at once."""
    from diffmark.private import given
    from diffmark.secret import from_hex, random_secrets

    if principal is not None and registry is not None:
        return [key.secret for key in registry.issue_many([principal] * count, reason=reason)]
    if scheme is not None and account is not None:
        return [scheme.encode(account) for _ in range(count)]
    if secret == "random":
        return list(random_secrets(count, length))
    return [from_hex(given(secret, "secrets"), length)] * count
