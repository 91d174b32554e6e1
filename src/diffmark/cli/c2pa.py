"""`diffmark c2pa`: what manifests say, and finding those that were stripped; other commands sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.marks import KeyFile, ring_for
from diffmark.cli.opening import Actor, Commands, Json, Reason, Url, opened, show
from diffmark.cli.readers import Device, Plain, ReaderName, Vae, open_reader

if TYPE_CHECKING:
    from diffmark.c2pa import ManifestSigner
    from diffmark.disclosure import Provider
    from diffmark.registry import Registry

app = Commands(help="Signed C2PA manifests that name the mark.", no_args_is_help=True)

Chain = Annotated[
    Path | None,
    typer.Option("--c2pa-cert", help="PEM chain to sign a C2PA manifest with; needs the registry."),
]
PrivateKey = Annotated[Path | None, typer.Option("--c2pa-key", help="PEM private key of that chain.")]
Disclose = Annotated[
    Path | None,
    typer.Option(help="TOML of the provider: write XMP, AIGC fields and a signed manifest (docs/law.md)."),
]
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
    codec: ReaderName = "auto",
    key: KeyFile = None,
    plain: Plain = False,
    vae: Vae = None,
    device: Device = None,
    url: Url = None,
    actor: Actor = None,
    reason: Reason = "",
) -> None:
    """Find the manifest of an image through its mark.

    Exit code 0: written; 1: no manifest is known for what the image carries; 2: an error.
    """
    with opened(url, actor, existing=True) as registry:
        detection = open_reader(codec, vae, ring_for(registry, key), plain, device=device).detect(image)
        names = registry.manifests.of(registry.identify(detection, reason=reason))
        data = registry.manifests.get(names[0][0]) if names else None
    if data is None:
        typer.echo(f"{image}: no manifest is known for what {detection.reader} read", err=True)
        raise typer.Exit(1)
    out.write_bytes(data)
    older = f"  ({len(names) - 1} older ones)" if names[1:] else ""
    typer.echo(f"{names[0][0]}  {out}  read by {detection.reader}{older}")


@app.command("test-chain")
def make_chain(
    folder: Annotated[Path, typer.Argument(help="New folder for chain.pem, key.pem and root.pem.")],
    days: Annotated[int, typer.Option(min=-300, max=400, help="How long the certificates hold.")] = 30,
) -> None:
    """Make certificates to try signing with. Nobody trusts them: for real ones see docs/law.md."""
    from diffmark.disclosure.chain import make

    folder.mkdir(parents=True)
    made = make(folder, days)
    typer.echo(f"{made.chain}\n{made.key}\n{made.root}")


@dataclass(frozen=True)
class Disclosing:
    """What was asked for and checked: a provider's disclosure, a signer, or both."""

    signer: ManifestSigner | None
    provider: Provider | None


def disclosing(chain: Path | None, key: Path | None, provider: Path | None) -> Disclosing | None:
    """Read and try what signs, before any work; None if nothing was asked for."""
    if (chain is None) != (key is None):
        raise typer.BadParameter("--c2pa-cert and --c2pa-key go together")
    if chain is None and provider is None:
        return None
    if chain is not None and provider is not None:
        raise typer.BadParameter("--disclose has a table for signing: leave out --c2pa-cert")
    from diffmark.c2pa import ManifestSigner
    from diffmark.disclosure import Provider

    own = Provider.from_file(provider) if provider is not None else None
    signer = ManifestSigner(chain, key) if chain is not None else None
    if own is not None and own.c2pa:
        asked = own.c2pa
        signer = ManifestSigner(
            Path(asked["certificate"]),
            Path(asked["key"]) if "key" in asked else None,
            command=asked.get("signer", ()),
            algorithm=asked.get("algorithm", "es256"),
            ta_url=asked.get("ta_url"),
        )
    if signer is not None:
        signer.check()
    return Disclosing(signer, own)


def signing(registry: Registry | None, asked: Disclosing | None) -> Finish | None:
    """What discloses and signs an image and keeps its manifest: (path, bits, ...) -> what to record."""
    if asked is None:
        return None
    from diffmark.disclosure.embedding import disclose
    from diffmark.secret import to_hex

    def finish(path: Path, bits: Any, kind: str | None = None, parent: Path | None = None) -> dict[str, Any]:
        record: dict[str, Any] = {}
        own = asked.provider.disclosure() if asked.provider else None
        if own is not None:
            disclose(path, own.fields())
            record["disclosure"] = own.to_dict()
        if asked.signer is not None:
            handle = registry.manifests.handle(to_hex(bits)) if registry is not None else None
            name, data = asked.signer.sign(path, handle, kind, parent, own)
            if registry is not None:
                registry.manifests.put(name, to_hex(bits), data)
            record["manifest"] = name
        return record

    return finish


def _text(value: Any) -> Any:
    return ", ".join(value) if isinstance(value, (list, tuple)) else value
