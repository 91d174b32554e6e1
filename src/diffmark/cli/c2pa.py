"""`diffmark c2pa`: what manifests say, and finding those that were stripped; other commands sign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.marks import KeyFile, ring_for
from diffmark.cli.opening import Actor, Json, Reason, Url, opened, show

if TYPE_CHECKING:
    from diffmark.registry import Registry

app = typer.Typer(help="Signed C2PA manifests that name the mark.", no_args_is_help=True)

Chain = Annotated[
    Path | None,
    typer.Option("--c2pa-cert", help="PEM chain to sign a C2PA manifest with; needs the registry."),
]
PrivateKey = Annotated[Path | None, typer.Option("--c2pa-key", help="PEM private key of that chain.")]
Anchors = Annotated[Path | None, typer.Option("--trust", help="PEM with the root certificates to trust.")]
Finish = Callable[..., dict[str, Any]]


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A PNG, JPEG or WebP.")],
    trust: Anchors = None,
    manifest: Annotated[
        Path | None, typer.Option(help="A recovered manifest (.c2pa) to hold against the file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a file's C2PA manifest says and whether it holds.

    Exit code 0: the signature holds; 1: it does not; 2: there is no manifest, or another error.
    """
    from diffmark.c2pa import inspect as look

    found = look(file, trust, manifest.read_bytes() if manifest else None)
    row = found.to_dict()
    show(row if as_json else {name: _text(value) for name, value in row.items()}, as_json)
    raise typer.Exit(1 if found.signature == "broken" else 0)


@app.command()
def recover(
    image: Annotated[Path, typer.Argument(help="An image whose metadata was stripped.")],
    out: Annotated[Path, typer.Option(help="File for the manifest (.c2pa).")],
    codec: Annotated[str, typer.Option(help="auto, pixel, or a latent codec's name or folder.")] = "auto",
    key: KeyFile = None,
    vae: Annotated[
        str | None, typer.Option(help="Autoencoder of a latent codec: a pipeline's folder or hub id.")
    ] = None,
    url: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Find the manifest of an image through its mark.

    Exit code 0: written; 1: no manifest is known for what the image carries; 2: an error.
    """
    from diffmark.detection.joint import open_detector

    with opened(url, actor) as registry:
        detection = open_detector(codec, vae, ring_for(registry, key)).detect(image)
        names = registry.manifests.of(registry.identify(detection, reason=reason))
        data = registry.manifests.get(names[0][0]) if names else None
    if data is None:
        typer.echo(f"{image}: no manifest is known for it", err=True)
        raise typer.Exit(1)
    out.write_bytes(data)
    typer.echo(f"{names[0][0]}  {out}" + (f"  ({len(names) - 1} older ones)" if names[1:] else ""))


def signing(registry: Registry | None, chain: Path | None, key: Path | None) -> Finish | None:
    """What signs an image and keeps its manifest: (path, bits, ...) -> what to record; None if not asked for."""
    if (chain is None) != (key is None):
        raise typer.BadParameter("--c2pa-cert and --c2pa-key go together")
    if chain is None or key is None or registry is None:
        return None
    from diffmark.c2pa import ManifestSigner
    from diffmark.secret import to_hex

    signer, manifests = ManifestSigner(chain, key), registry.manifests

    def finish(path: Path, bits: Any, kind: str | None = None, parent: Path | None = None) -> dict[str, Any]:
        name, data = signer.sign(path, manifests.handle(to_hex(bits)), kind, parent)
        manifests.put(name, to_hex(bits), data)
        return {"manifest": name}

    return finish


def _text(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, (list, tuple)) else value
