"""`diffmark embed`: mark images that already exist."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.c2pa import Chain, Disclose, PrivateKey, disclosing, signing
from diffmark.cli.fingerprint import Keep, keeping
from diffmark.cli.markers import FORMATS, latent_marker, pixel_marker
from diffmark.cli.marks import (
    DEFAULT_BITS,
    Account,
    KeyFile,
    PayloadBits,
    PayloadKey,
    Principal,
    SecretOption,
    check_choice,
    ring_for,
    secrets_for,
    tell_key,
)
from diffmark.cli.opening import Actor, Url, opened
from diffmark.cli.payloads import read_scheme
from diffmark.cli.readers import Vae
from diffmark.parallel import cores, in_order, one_at_a_time
from diffmark.records import RECORDS, append_record


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
    codec: Annotated[str, typer.Option(help="pixel, or a latent codec's name, folder, or hub id.")] = "pixel",
    key: KeyFile = None,
    secret: SecretOption = "random",
    principal: Principal = None,
    payload_key: PayloadKey = None,
    account: Account = None,
    payload_bits: PayloadBits = DEFAULT_BITS,
    quality: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="SSIMULACRA2 of a marked picture: 90 cannot be told apart, 70 is high; by default 80 to 90, "
            "as the picture needs.",
        ),
    ] = None,
    vae: Vae = None,
    strength: Annotated[
        float | None, typer.Option(help="Scale of a latent codec's mark; 1 by default.")
    ] = None,
    format: Annotated[
        Format | None, typer.Option(help="Of the files in a folder; the source's by default, else png.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Images at work at a time; as many as there are cores by default."),
    ] = None,
    c2pa_cert: Chain = None,
    c2pa_key: PrivateKey = None,
    disclose: Disclose = None,
    fingerprints: Keep = False,
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Mark images that exist.

    Their detail, size and metadata are kept. Colours are converted to sRGB. Files that are in the folder
    already are left alone: a run that was cut off goes on where it stopped. Beside them, images.jsonl gets a
    line an image, with its secret. Exit code 2: at least one image could not be read, or another error.
    """
    from diffmark.cli.detect import expand
    from diffmark.images import ImageError
    from diffmark.private import given
    from diffmark.progress import track
    from diffmark.secret import from_hex, to_hex

    paths = list(expand(images, sys.stdin))
    targets = _targets(paths, out, format)
    scheme = read_scheme(payload_key, payload_bits, 64) if codec == "pixel" else None
    check_choice(secret, principal, payload_key, account)
    asked = disclosing(c2pa_cert, c2pa_key, disclose)  # a bad certificate is said before any work
    if asked and asked.provider and any(target.suffix.lower() == ".gif" for target in targets):
        raise typer.BadParameter("disclosures go into PNG, JPEG and WebP: give --format")
    counts: Counter[str] = Counter()
    needed = principal or c2pa_cert or c2pa_key or fingerprints
    with opened(registry, actor) if needed else nullcontext() as keys:
        ring = ring_for(keys, key)
        if codec == "pixel":
            marker = pixel_marker(ring, quality, vae, strength)
        else:
            marker = latent_marker(codec, vae, strength, ring)
            scheme = read_scheme(payload_key, payload_bits, marker.length)
        tell_key(ring)
        sign = signing(keys, asked)
        if fingerprints:
            sign = keeping(keys, sign, "embed")
        finish = one_at_a_time(sign) if sign else None
        if finish and keys is not None and principal is None:
            if secret == "random":
                raise typer.BadParameter(
                    "a manifest or fingerprint is of a key of the registry: give --secret or --principal"
                )
            keys.manifests.check([from_hex(given(secret, "secrets"), marker.length)])

        def jobs_of() -> Iterator[_Job]:
            for path, target in zip(paths, targets, strict=True):
                bits = None
                if not target.exists():
                    reason = f"embed {path.name}"
                    (bits,) = secrets_for(1, marker.length, secret, principal, scheme, account, keys, reason)
                yield _Job(path, target, bits)

        append = one_at_a_time(append_record)

        def recorded(job: _Job, made: dict[str, Any]) -> dict[str, Any]:
            return {**job.names(), **made, "account": account, "principal": principal}

        def work(job: _Job) -> dict[str, Any]:
            def log(made: dict[str, Any]) -> None:
                append(job.target.parent / RECORDS, recorded(job, made))

            return {} if job.bits is None else marker.write(job.path, job.bits, job.target, finish, log)

        with marker.quiet():
            done = in_order(work, jobs_of(), (jobs or cores()) if codec == "pixel" else 1)
            for job, result in track(done, "marking", len(paths)):
                if job.bits is None:
                    counts["there already"] += 1
                    record = {**job.names(), "skipped": "there already"}
                    line = f"{job.target}  skipped: there already"
                elif isinstance(result, (ImageError, OSError)):
                    if principal is not None and keys is not None:
                        keys.revoke(key=to_hex(job.bits), reason="its image was not marked")
                    counts["failed"] += 1
                    record = {"source": str(job.path), "error": str(result)}
                    line = f"{job.path}  error: {str(result).removeprefix(f'{job.path}: ')}"
                elif isinstance(result, BaseException):
                    raise result
                else:
                    counts["marked"] += 1
                    record = recorded(job, result)
                    line = f"{job.target}  secret {to_hex(job.bits)}{marker.words(record)}"
                typer.echo(json.dumps(record) if as_json else line)
    if len(paths) > 1:
        typer.echo(", ".join(f"{count} {what}" for what, count in counts.items()), err=True)
    raise typer.Exit(2 if counts["failed"] else 0)


@dataclass(frozen=True)
class _Job:
    """One file to mark; without bits it is there already."""

    path: Path
    target: Path
    bits: Any

    def names(self) -> dict[str, str]:
        return {"source": str(self.path), "file": str(self.target)}


def _targets(paths: list[Path], out: Path, format: Format | None) -> list[Path]:
    """Where each image goes; no two share a name, and none takes another's place."""
    if not paths:
        raise typer.BadParameter("there are no images")
    if out.suffix and out.suffix.lower() not in FORMATS and not out.is_dir():
        raise ValueError(f"{out}: images are written as {', '.join(FORMATS)}, or into a folder")
    if len(paths) > 1 and out.suffix:
        raise ValueError(f"{len(paths)} images go into a folder, and {out} is a file's name")
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
