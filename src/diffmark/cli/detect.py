"""`diffmark detect`: what images carry."""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.marks import KeyFile
from diffmark.cli.payloads import read_scheme
from diffmark.cli.readers import BatchSize, Device, Plain, ReaderName, Vae, open_reader


def detect(
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, or - for a list of paths on standard input.")
    ],
    codec: ReaderName = "auto",
    key: KeyFile = None,
    plain: Plain = False,
    vae: Vae = None,
    secret: Annotated[
        list[str] | None, typer.Option(help="Hex of a secret to look for, or @FILE; may be repeated.")
    ] = None,
    payload_key: Annotated[Path | None, typer.Option(help="File with the key of payloads to verify.")] = None,
    payload_bits: Annotated[str, typer.Option(help="Bits of account, nonce and check.")] = "20,13,12",
    fpr: Annotated[float, typer.Option(help="False-positive rate that a verdict is stated at.")] = 1e-3,
    batch_size: BatchSize = 8,
    device: Device = None,
    maps: Annotated[
        Path | None, typer.Option(help="Folder for a picture of each image that shows where the mark is.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Read secrets from images.

    The pixel layer is read first; where it sees no mark, the latent codec that comes with the package is asked too.
    Exit code 0: every image is marked; 1: at least one is not, or cannot be decided; 2: at least one could not
    be read, or another error.
    """
    from diffmark.private import given
    from diffmark.progress import track

    paths = list(expand(images, sys.stdin))
    secrets = [word for value in secret or [] for word in given(value, "secrets").split()]
    detector: Any = open_reader(codec, vae, key, plain, fpr=fpr, device=device, batch_size=batch_size)
    detector.payload = read_scheme(payload_key, payload_bits, detector.length)
    outcomes = track(detector.scan(paths, secrets or None), "reading", len(paths))
    if maps:
        outcomes = mapped(outcomes, paths, detector, maps)
    raise typer.Exit(report(outcomes, paths, as_json))


def mapped(outcomes: Iterator[Any], paths: list[Path], detector: Any, folder: Path) -> Iterator[Any]:
    """Pass outcomes on and write an evidence map of each: for the given secret, or else for the bits read."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (path, outcome) in enumerate(zip(paths, outcomes, strict=True)):
        if not isinstance(outcome, Exception):
            found = detector.evidence_map(path, outcome)
            found.overlay(path).save(folder / f"{number:05d}-{path.stem}.png")
        yield outcome


def expand(names: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    """Every file that the names stand for, in order, folders sorted."""
    from diffmark.images import EXTENSIONS

    for name in names:
        if name == "-":
            yield from expand((line.strip() for line in stdin if line.strip()), [])
            continue
        path = Path(name)
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
        elif path.exists() or not glob.has_magic(name):
            yield path  # a missing file is reported when it is read
        else:
            yield from sorted(
                Path(match) for match in glob.glob(name, recursive=True) if Path(match).is_file()
            )


def report(outcomes: Iterator[Any], paths: list[Path], as_json: bool) -> int:
    """Print each outcome, as JSON lines or one table, and return the exit code."""
    from rich.console import Console
    from rich.table import Table

    if not paths:
        raise typer.BadParameter("there are no images")
    table = Table("image", "verdict", "p-value", "secret", "read by", "because")
    code = 0
    for path, outcome in zip(paths, outcomes, strict=True):
        if isinstance(outcome, Exception):
            code = 2
            if as_json:
                typer.echo(json.dumps({"source": str(path), "error": str(outcome)}))
            else:
                table.add_row(str(path), "error", "", "", "", str(outcome).removeprefix(f"{path}: "))
            continue
        code = max(code, 0 if outcome.marked else 1)
        if as_json:
            typer.echo(json.dumps(outcome.to_dict()))
        else:
            p_value = "" if outcome.p_value is None else f"{outcome.p_value:.2g}"
            because = "; ".join([outcome.explanation, *outcome.notes])
            read = outcome.secret if outcome.marked else ""  # bits of an unmarked image are no secret
            table.add_row(str(path), outcome.verdict, p_value, read, outcome.reader, because)
    if not as_json:
        console = Console()
        if not console.is_terminal:
            console.width = 240  # a file or a pipe has no width to keep to
        console.print(table)
    return code
