"""`diffmark serve` and `diffmark token`: the HTTP service and its credentials."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.marks import KeyFile
from diffmark.cli.opening import Actor, Commands, Json, Url, default_url, opened, plain_errors, show
from diffmark.cli.readers import BatchSize, Device, Plain, ReaderName, Vae

tokens = Commands(help="Credentials of the HTTP service.", no_args_is_help=True)


def serve(
    url: Url = None,
    actor: Actor = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    codec: ReaderName = "auto",
    key: KeyFile = None,
    plain: Plain = False,
    vae: Vae = None,
    batch_size: BatchSize = 8,
    device: Device = None,
    fpr: Annotated[float, typer.Option(help="False-positive rate of verdicts.")] = 1e-3,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of /v1/generate: an embedded one, a pipeline's folder, or a hub id. "
            "By default Vista for codecs of its family, none for others."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Add the verifier without tokens, at /; auditors have /auditor."),
    ] = False,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            envvar="DIFFMARK_VERDICT_KEY", help="Sign verdicts with this key (diffmark verdict key)."
        ),
    ] = None,
    issuer: Annotated[str | None, typer.Option(help="Who signs the verdicts, in words.")] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="File for feedback of the public; in your data folder by default.")
    ] = None,
    trust: Annotated[
        Path | None, typer.Option(help="PEM of the roots that C2PA credentials are trusted under.")
    ] = None,
    fingerprints: Annotated[
        bool,
        typer.Option("--fingerprints", help="Log those of marked images; look pictures without a mark up."),
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that answer; they share their limits.")
    ] = 1,
) -> None:
    """Start the HTTP service and the auditor's page. TLS is the job of a proxy in front of it.

    /health answers at once, /ready once the models are loaded. SIGTERM lets requests under way finish.
    """
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", *(["OMP_NUM_THREADS"] if workers > 1 else [])):
        os.environ.setdefault(name, "1")  # requests are read side by side; before numpy is loaded
    _check(public, sign_key, trust, feedback, issuer)

    from diffmark.server.launch import Options, run

    address = url or default_url()
    options = Options(
        address,
        actor,
        host,
        port,
        codec=str(codec),
        key=None if key is None else str(key),
        search=not plain,
        vae=vae,
        batch_size=batch_size,
        device=device,
        fpr=fpr,
        model=model,
        public=public,
        fingerprints=fingerprints,
        sign_key=None if sign_key is None else str(sign_key),
        issuer=issuer,
        feedback=None if feedback is None else str(feedback),
        trust=None if trust is None else str(trust),
        workers=workers,
    )
    with plain_errors():
        _hint(address, actor, public)
        run(options)


def _check(
    public: bool, sign_key: Path | None, trust: Path | None, feedback: Path | None, issuer: str | None
) -> None:
    """Arguments are checked before anything heavy is imported."""
    from diffmark.verdict.keys import SigningKey

    if sign_key is not None:
        SigningKey.from_file(sign_key)
    elif public:
        typer.echo("verdicts are not signed: give --sign-key (diffmark verdict key FILE)", err=True)
    if issuer is not None and sign_key is None:
        raise typer.BadParameter("--issuer is for signed verdicts: give --sign-key")
    if not public and (feedback is not None or trust is not None):
        raise typer.BadParameter("--feedback and --trust are for --public")
    if trust is not None and not trust.is_file():
        raise FileNotFoundError(f"{trust}: no such file")


def _hint(url: str, actor: str | None, public: bool) -> None:
    """Open the registry once, so that errors come at once; and say so if nobody can sign in."""
    from diffmark.server.tokens import Tokens

    with opened(url, actor, cache=False) as registry:
        tokens = Tokens(registry.store.engine).all()
    if not any(token.status == "live" for token in tokens):
        typer.echo("there is no live token yet: make one with `diffmark token create NAME`", err=True)


@tokens.command()
def create(
    name: Annotated[str, typer.Argument(help="Who will use it; the actor in the audit log.")],
    role: Annotated[str, typer.Option(help="operator, auditor or investigator.")] = "auditor",
    days: Annotated[float, typer.Option(min=0.001, help="How long it lives.")] = 90,
    url: Url = None,
    actor: Actor = None,
) -> None:
    """Print a new token. It is shown once and kept only as a digest."""
    from diffmark.server.tokens import grant_token

    with opened(url, actor, cache=False) as registry:
        token, text = grant_token(registry, name, role, days)
    typer.echo(text)
    typer.echo(f"number {token.id}, {role}, for {name}, {days:g} days", err=True)


@tokens.command("list")
def show_all(url: Url = None, actor: Actor = None, as_json: Json = False) -> None:
    """Show all tokens, without their texts."""
    from diffmark.server.tokens import Tokens

    def day(moment: int) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(moment))

    with opened(url, actor, cache=False) as registry:
        rows = [
            {"number": t.id, "name": t.name, "role": t.role, "expires": day(t.expires), "status": t.status}
            for t in Tokens(registry.store.engine).all()
        ]
    show(rows, as_json)


@tokens.command()
def revoke(
    number: Annotated[int, typer.Argument(help="As `diffmark token list` shows it.")],
    url: Url = None,
    actor: Actor = None,
) -> None:
    """End a token now."""
    from diffmark.server.tokens import Tokens

    with opened(url, actor, cache=False) as registry:
        Tokens(registry.store.engine).revoke(number)
