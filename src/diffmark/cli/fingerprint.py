"""`diffmark fingerprint`: pictures found again by likeness, where their mark cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.opening import Actor, Commands, Json, Reason, Url, opened, show

if TYPE_CHECKING:
    from diffmark.cli.c2pa import Finish
    from diffmark.registry import Registry
    from diffmark.registry.fingerprints import Match

Keep = Annotated[
    bool,
    typer.Option(
        "--fingerprints",
        help="Keep a fingerprint of each marked image in the registry, for look-up when its mark is gone.",
    ),
]
app = Commands(help="Look pictures up by likeness: a weaker basis than a mark.", no_args_is_help=True)


def keeping(registry: Registry | None, finish: Finish | None, reason: str) -> Finish:
    """What finishes an image and then keeps its fingerprint: (path, bits, ...) -> what to record."""
    from PIL import Image

    from diffmark.fingerprint import ALGORITHM, fingerprint
    from diffmark.registry.fingerprints import Fingerprints
    from diffmark.secret import to_hex

    assert registry is not None  # whoever asks for fingerprints opens it
    fingerprint(Image.new("L", (64, 64)))  # a missing package is said before any work
    kept = Fingerprints(registry)

    def run(path: Path, bits: Any, *rest: Any) -> dict[str, Any]:
        record = finish(path, bits, *rest) if finish else {}
        kept.log(path, to_hex(bits), reason)
        return record | {"fingerprint": ALGORITHM}

    return run


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
    missing = False
    with opened(url, actor, existing=True, cache=False) as registry:
        for image, match in look_up(registry, images, reason).items():
            missing |= match is None
            if as_json:
                show({"source": image, **likeness(match)}, True)
            else:
                typer.echo(f"{image}  {words(match)}")
    raise typer.Exit(1 if missing else 0)


def look_up(registry: Registry, images: Iterable[Path | str], reason: str) -> dict[str, Match | None]:
    """The logged picture that each image looks like, if any."""
    from diffmark.registry.fingerprints import Fingerprints

    kept = Fingerprints(registry)
    return {str(image): kept.find(image, reason) for image in images}


def compare(registry: Registry, named: dict[str, str]) -> dict[str, int]:
    """Bits by which images differ from the picture that their key was written into; those of which one is known."""
    from diffmark.registry.fingerprints import Fingerprints

    kept = Fingerprints(registry)
    found = {image: kept.distance(image, key) for image, key in named.items()}
    return {image: distance for image, distance in found.items() if distance is not None}


def likeness(match: Match | None) -> dict[str, Any]:
    """A look-up for JSON."""
    from diffmark.fingerprint import THRESHOLD

    found = {"basis": "fingerprint", "threshold": THRESHOLD, "principal": match.principal if match else None}
    return found | ({"distance": match.distance} if match else {})


def words(match: Match | None) -> str:
    """A look-up for people."""
    bits = (
        f"looks like one of {match.principal} ({match.distance} of 256 bits differ)" if match else "like none"
    )
    return f"{bits}; by fingerprint, the weaker basis"
