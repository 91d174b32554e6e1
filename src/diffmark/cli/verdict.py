"""`diffmark verdict`: statements on files, signed with the operator's key, that anybody can check offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.marks import KeyFile
from diffmark.cli.opening import Commands, Json, show
from diffmark.cli.readers import Device, Plain, ReaderName, Vae, open_reader

app = Commands(help="Signed verdicts that can be checked offline.", no_args_is_help=True)

VerdictKey = Annotated[
    Path,
    typer.Option("--sign-key", envvar="DIFFMARK_VERDICT_KEY", help="Ed25519 key of `diffmark verdict key`."),
]


@app.command("key")
def make_key(
    out: Annotated[Path, typer.Argument(help="New PEM file for the private key (mode 600).")],
    public: Annotated[Path | None, typer.Option(help="New file for the public keys, as a JWK set.")] = None,
) -> None:
    """Make the key that verdicts are signed with. Prints the public keys, to publish."""
    from diffmark.verdict import PublicKeys, SigningKey

    if public is not None and public.exists():
        raise ValueError(f"{public} is there already: choose another place")
    document = json.dumps(PublicKeys(SigningKey.create(out).public).to_jwks(), indent=1)
    if public is not None:
        public.write_text(document + "\n")
    typer.echo(document)


@app.command()
def sign(
    image: Annotated[Path, typer.Argument(help="The image to read.")],
    key: VerdictKey,
    out: Annotated[Path, typer.Option(help="New file for the signed verdict (JSON).")],
    page: Annotated[
        Path | None, typer.Option(help="New file for a page to print (HTML, with a QR code).")
    ] = None,
    secret: Annotated[
        str | None, typer.Option(help="Hex of a secret to look for; it is not written into the verdict.")
    ] = None,
    codec: ReaderName = "auto",
    operator_key: KeyFile = None,
    vae: Vae = None,
    plain: Plain = False,
    device: Device = None,
    fpr: Annotated[float, typer.Option(help="False-positive rate of the verdict.")] = 1e-3,
    issuer: Annotated[str | None, typer.Option(help="Who says so.")] = None,
) -> None:
    """Read an image and write a signed verdict on it."""
    from diffmark.verdict import SigningKey

    signing = SigningKey.from_file(key)
    if not image.is_file():
        raise FileNotFoundError(f"{image}: no such file")
    for target in (out, page):
        if target is not None and target.exists():
            raise ValueError(f"{target} is there already: choose another place")

    from diffmark.verdict import statement_of
    from diffmark.verdict.jws import flattened
    from diffmark.verdict.sheet import sheet

    data = image.read_bytes()
    detector = open_reader(codec, vae, operator_key, plain, fpr=fpr, device=device)
    found = detector.detect(data, secret)
    statement = statement_of(data, found, issuer=issuer)
    text = statement.signed(signing)
    if page is not None:
        page.write_text(sheet(text, statement, signing.id))
    out.write_text(json.dumps(flattened(text)) + "\n")
    typer.echo(f"{image}  {statement.verdict}  {found.explanation}\n{out}")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="The signed verdict: JSON, or the text of the QR code.")],
    image: Annotated[Path | None, typer.Argument(help="The image that it should be about.")] = None,
    *,
    key: Annotated[Path, typer.Option(help="Public keys: a JWK set (/.well-known/jwks.json) or PEM.")],
    page: Annotated[
        Path | None, typer.Option(help="New file for a page to print (HTML, with a QR code).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a signed verdict, and that it is about an image. Needs no network.

    Exit code 0: it holds; 1: it was changed, or is about another file; 2: another error.
    """
    from diffmark.verdict import BadSignature, PublicKeys, check
    from diffmark.verdict.sheet import sheet

    keys = PublicKeys.from_file(key)
    text, data = file.read_text(), image.read_bytes() if image else None
    if page is not None and page.exists():
        raise ValueError(f"{page} is there already: choose another place")
    try:
        statement, signer = check(text, keys, data)
    except BadSignature as error:
        row: dict[str, Any] = {"file": str(file), "holds": False, "reason": str(error)}
        show(row, True) if as_json else typer.echo(f"{file}: does not hold: {error}")
        raise typer.Exit(1) from error
    if page is not None:
        page.write_text(sheet(text, statement, signer))
    row = {"file": str(file), "holds": True, "image_checked": image is not None, "key": signer}
    row |= statement.to_dict()
    if not as_json:
        row["basis"], row["detector"] = ", ".join(statement.basis), json.dumps(statement.detector)
    show(row, as_json)
