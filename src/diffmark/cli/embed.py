"""`diffmark embed`: mark images that already exist."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.c2pa import Chain, PrivateKey, signing
from diffmark.cli.opening import Actor, Url, opened

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
QUALITY = 95  # of lossy formats; PNG takes no notice


class Format(str, Enum):
    """What marked images are written as."""

    png = "png"
    jpg = "jpg"
    webp = "webp"


def embed(
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, or - for a list on standard input.")
    ],
    out: Annotated[Path, typer.Option(help="A file for one image, a folder for several.")],
    codec: Annotated[str, typer.Option(help="A codec's name, folder, or hub id.")] = "vista",
    vae: Annotated[str | None, typer.Option(help="Autoencoder: a pipeline's folder or hub id.")] = None,
    secret: Annotated[str, typer.Option(help="Hex digits, or 'random' for a fresh one an image.")] = "random",
    strength: Annotated[
        float | None,
        typer.Option(help="Scale of the mark; by default what suits the codec, and 1 with another --vae."),
    ] = None,
    format: Annotated[
        Format | None, typer.Option(help="Of the files in a folder; the source's by default, else png.")
    ] = None,
    c2pa_cert: Chain = None,
    c2pa_key: PrivateKey = None,
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Add a mark to images that exist; their detail, size and metadata are kept.

    Colours are converted to sRGB. Files that are in the folder already are left alone. Exit code 2: at least one
    image could not be read, or another error.
    """
    from diffmark.cli.detect import expand
    from diffmark.detection import Detector
    from diffmark.embedding import embed as mark
    from diffmark.embedding import suited_strength
    from diffmark.images import ImageError, read_image
    from diffmark.progress import track
    from diffmark.secret import from_hex, random_secrets, to_hex

    paths = list(expand(images, sys.stdin))
    targets = _targets(paths, out, format)
    detector = Detector.from_pretrained(codec, vae)
    length = detector.codec.config.length
    strength = suited_strength(detector.codec, detector.vae) if strength is None else strength
    code = 0
    with opened(registry, actor) if c2pa_cert or c2pa_key else nullcontext() as keys:
        finish = signing(keys, c2pa_cert, c2pa_key)
        if finish and keys is not None:
            if secret == "random":
                raise typer.BadParameter("a manifest names a key of the registry: give --secret")
            keys.manifests.check([from_hex(secret, length)])
        for path, target in track(zip(paths, targets, strict=True), "marking", len(paths)):
            record: dict[str, Any] = {"source": str(path), "file": str(target)}
            bits = random_secrets(1, length)[0] if secret == "random" else from_hex(secret, length)
            try:
                if target.exists():
                    record["skipped"], line = "there already", f"{target}  skipped: there already"
                else:
                    picture = read_image(path)
                    marked = mark(picture, detector.codec, detector.vae, bits, strength)
                    record |= {"secret": to_hex(bits), "strength": strength}
                    record |= _write(marked, picture, target, bits, finish)
                    line = f"{target}  secret {to_hex(bits)}"
            except ImageError as error:
                code, record = 2, {"source": str(path), "error": str(error)}
                line = f"{path}  error: {str(error).removeprefix(f'{path}: ')}"
            typer.echo(json.dumps(record) if as_json else line)
    raise typer.Exit(code)


def _targets(paths: list[Path], out: Path, format: Format | None) -> list[Path]:
    """Where each image goes; no two share a name, and none takes another's place."""
    if not paths:
        raise typer.BadParameter("there are no images")
    if len(paths) == 1 and out.suffix.lower() in FORMATS:
        if format:
            raise typer.BadParameter("--format is for a folder: a file's name says its own")
        if out.exists():
            raise ValueError(f"{out} is there already: choose another place")
        return [out]
    targets = [out / f"{path.stem}{_suffix(path, format)}" for path in paths]
    name, count = Counter(targets).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{count} images would become {name}: mark them into several folders")
    sources = {path.resolve() for path in paths}
    for target in targets:
        if target.resolve() in sources:
            raise ValueError(f"{target} is one of the images: choose another folder")
    return targets


def _suffix(path: Path, format: Format | None) -> str:
    if format:
        return f".{format.value}"
    return path.suffix if path.suffix.lower() in FORMATS else ".png"


def _write(
    image: Any, picture: Any, target: Path, bits: Any, finish: Callable[..., dict[str, Any]] | None
) -> dict[str, Any]:
    """Write a marked image with its source's metadata, and sign it; it is complete before it takes its place."""
    from diffmark.metadata import save_with_metadata

    target.parent.mkdir(parents=True, exist_ok=True)
    partial, name = target.with_name(f"{target.name}.part"), FORMATS[target.suffix.lower()]
    try:
        save_with_metadata(image, picture, partial, name, QUALITY)
        added = finish(partial, bits, f"image/{name.lower()}", Path(picture.source)) if finish else {}
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return added
