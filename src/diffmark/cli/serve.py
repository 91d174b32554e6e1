"""`diffmark serve` and `diffmark token`: the HTTP service and its credentials."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from diffmark.cli.detect import ReaderName
from diffmark.cli.marks import KeyFile, ring_for, tell_key
from diffmark.cli.opening import Actor, Json, Url, opened, show

if TYPE_CHECKING:
    from diffmark.server.painting import Painter
    from diffmark.server.service import Service

tokens = typer.Typer(help="Credentials of the HTTP service.", no_args_is_help=True)

LOGGING = {  # one JSON line a request on stdout; uvicorn's own on stderr
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(message)s"}, "own": {"format": "%(levelname)s %(message)s"}},
    "handlers": {
        "lines": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "plain"},
        "errors": {"class": "logging.StreamHandler", "stream": "ext://sys.stderr", "formatter": "own"},
    },
    "loggers": {
        "diffmark.server": {"handlers": ["lines"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"handlers": ["errors"], "level": "INFO", "propagate": False},
    },
}


def serve(
    url: Url = None,
    actor: Actor = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    codec: ReaderName = "auto",
    key: KeyFile = None,
    vae: Annotated[
        str | None, typer.Option(help="Autoencoder of a latent codec: a pipeline's folder or hub id.")
    ] = None,
    fpr: Annotated[float, typer.Option(help="False-positive rate of verdicts.")] = 1e-3,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of /v1/generate: an embedded one, a pipeline's folder, or a hub id. "
            "By default Vista for codecs of its family, none for others."
        ),
    ] = None,
) -> None:
    """Start the HTTP service and the auditor's page. TLS is the job of a proxy in front of it."""
    import uvicorn

    from diffmark.detection.joint import open_detector
    from diffmark.server.app import create_app
    from diffmark.server.service import Service

    with opened(url, actor, index=True) as registry:
        ring = ring_for(registry, key)
        tell_key(ring)
        detector = open_detector(codec, vae, ring, fpr=fpr)
        service = Service(detector, registry)
        service.painter = _painter(service, model)
        app = create_app(service)
        # Connections are kept for longer than proxies keep theirs, so that the service closes none under a request.
        uvicorn.run(app, host=host, port=port, log_config=LOGGING, access_log=False, timeout_keep_alive=75)


def _painter(service: Service, model: str | None) -> Painter | None:
    """What makes images: a model that was asked for, or Vista beside a codec of its family."""
    from diffmark.server.painting import Painter

    latent = service.reading.latent
    if model is None and (latent is None or latent.codec.config.family != "vista"):
        return None
    codec = latent.codec if latent else None  # it writes under the key that the detector reads with
    pixel = None if service.reading.detector is latent else service.reading.pixel.codec
    painter = Painter.load(model or "vista", codec, pixel)
    if codec and painter.codec is None:
        typer.echo(f"no latent codec for {model}: its images are marked in the pixel layer alone", err=True)
    return painter


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
