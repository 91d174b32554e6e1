"""The command line. Each group of commands is a module; what is heavy is imported inside the commands.

Exit codes: 0 done (detect: every image is marked), 1 detect: an image is not marked, 2 an error.
"""

import os
import sys
from typing import Annotated

import typer

from diffmark import __version__
from diffmark.cli import (
    attack,
    baselines,
    bulk,
    c2pa,
    calibrate,
    detect,
    embed,
    evaluate,
    fingerprint,
    generate,
    identify,
    info,
    key,
    keys,
    registry,
    report,
    secret,
    serve,
    train,
    verdict,
    vista,
)
from diffmark.cli.opening import Commands

EXTRAS = {  # of what commands import: the extra that brings it
    "diffusion": (
        "torch",
        "diffusers",
        "transformers",
        "accelerate",
        "safetensors",
        "huggingface_hub",
        "tqdm",
    ),
    "registry": ("numba", "pyarrow"),
    "train": ("kornia", "tensorboard", "matplotlib"),
    "eval": ("pytorch_msssim", "ssimulacra2", "cv2", "pywt", "onnxruntime", "peft", "skimage"),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "segno"),
    "c2pa": ("c2pa",),
    "bulk": ("fsspec", "ray"),
}

app = Commands(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# In the order of --help: a picture's way, what it needs, what researchers need.
app.command("embed")(embed.embed)
app.command("generate")(generate.generate)
app.command("detect")(detect.detect)
app.command("identify")(identify.identify)
app.command("bulk")(bulk.bulk)
app.command("serve")(serve.serve)
app.add_typer(key.app, name="key")
app.add_typer(secret.app, name="secret")
app.add_typer(keys.app, name="keys")
app.add_typer(registry.app, name="registry")
app.add_typer(serve.tokens, name="token")
app.add_typer(verdict.app, name="verdict")
app.add_typer(fingerprint.app, name="fingerprint")
app.add_typer(c2pa.app, name="c2pa")
app.command("info")(info.info)
app.command("report")(report.report)
app.command("attack")(attack.attack)
app.command("evaluate")(evaluate.evaluate)
app.add_typer(train.app, name="train")
app.command("calibrate")(calibrate.calibrate)
app.add_typer(baselines.app, name="baselines")
app.add_typer(vista.app, name="vista")


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffmark {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Write a secret into images, read it back, and name the account it was issued to."""


def main() -> None:
    """Entry point of the `diffmark` command: bad input ends in one line on stderr and exit code 2."""
    for library in ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):  # their advice is for programmers
        os.environ.setdefault(library, "error")
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("DIFFMARK_DEBUG"):
            raise
        print(f"error: {error}{_missing(error)}", file=sys.stderr)
        sys.exit(2)


def _missing(error: Exception) -> str:
    """What to install for a package that was not found."""
    package = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return f"; it comes with an extra: pip install 'diffmark[{extra}]'" if extra else ""
