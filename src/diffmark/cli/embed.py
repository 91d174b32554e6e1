"""`diffmark embed`: mark images that already exist."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.c2pa import Chain, PrivateKey, signing
from diffmark.cli.opening import Actor, Url, opened

FORMATS = (".png", ".jpg", ".jpeg", ".webp")
QUALITY = 95  # of lossy formats; PNG takes no notice


def embed(
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, globs, or - for a list on standard input.")
    ],
    out: Annotated[Path, typer.Option(help="A file for one image, a folder for several.")],
    codec: Annotated[str, typer.Option(help="A codec's name, folder, or hub id.")] = "vista",
    vae: Annotated[str | None, typer.Option(help="Autoencoder: a pipeline's folder or hub id.")] = None,
    secret: Annotated[str, typer.Option(help="Hex digits, or 'random' for a fresh one an image.")] = "random",
    strength: Annotated[
        float | None, typer.Option(help="Scale of the mark; what suits the codec by default.")
    ] = None,
    c2pa_cert: Chain = None,
    c2pa_key: PrivateKey = None,
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Add a mark to images that already exist; their detail, size and metadata are kept."""
    from diffmark.cli.detect import expand
    from diffmark.detection import Detector
    from diffmark.embedding import embed as mark
    from diffmark.progress import track
    from diffmark.secret import from_hex, random_secrets, to_hex

    paths = list(expand(images, sys.stdin))
    targets = _targets(paths, out)
    detector = Detector.from_pretrained(codec, vae)
    length = detector.codec.config.length
    strength = detector.codec.config.embed_strength if strength is None else strength
    with opened(registry, actor) if c2pa_cert or c2pa_key else nullcontext() as keys:
        finish = signing(keys, c2pa_cert, c2pa_key)
        if finish and keys is not None:
            if secret == "random":
                raise typer.BadParameter("a manifest names a key of the registry: give --secret")
            keys.manifests.check([from_hex(secret, length)])
        for path, target in track(zip(paths, targets, strict=True), "marking", len(paths)):
            bits = random_secrets(1, length)[0] if secret == "random" else from_hex(secret, length)
            save(mark(path, detector.codec, detector.vae, bits, strength), path, target)
            record = {"source": str(path), "file": str(target), "secret": to_hex(bits), "strength": strength}
            record |= finish(target, bits, parent=path) if finish else {}
            typer.echo(json.dumps(record) if as_json else f"{target}  secret {to_hex(bits)}")


def _targets(paths: list[Path], out: Path) -> list[Path]:
    """Where each image goes; nothing is overwritten and no two share a name."""
    if not paths:
        raise typer.BadParameter("there are no images")
    single = len(paths) == 1 and out.suffix.lower() in FORMATS
    targets = [out] if single else [out / f"{path.stem}.png" for path in paths]
    for target in targets:
        if target.exists() or targets.count(target) > 1:
            raise ValueError(
                f"{target} is there already, or two images would become it: choose another place"
            )
    return targets


def save(image: Any, source: Path, target: Path) -> None:
    """Write the marked PIL image with the source's EXIF, less the orientation: the pixels are upright now."""
    from PIL import Image

    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as original:
        exif = original.getexif()
    exif.pop(0x0112, None)
    image.save(target, exif=exif.tobytes(), quality=QUALITY)
