"""`diffmark embed`: mark images that already exist."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.c2pa import Chain, Disclose, PrivateKey, disclosing, signing
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
from diffmark.records import RECORDS, append_record

if TYPE_CHECKING:
    from diffmark.keys.ring import KeyRing

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".gif": "GIF"}
QUALITY = 95  # of lossy formats; PNG takes no notice
SEEN_PSNR = 30.0  # dB, below which the mark of a latent codec is seen by anybody


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
    vae: Annotated[
        str | None, typer.Option(help="Autoencoder of a latent codec: a pipeline's folder or hub id.")
    ] = None,
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
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Add a mark to images that exist; their detail, size and metadata are kept.

    Colours are converted to sRGB. Files that are in the folder already are left alone: a run that was cut off goes
    on where it stopped. Beside them, images.jsonl gets a line an image, with its secret. Exit code 2: at least one
    image could not be read, or another error.
    """
    from diffmark.cli.detect import expand
    from diffmark.images import ImageError
    from diffmark.private import given
    from diffmark.progress import track
    from diffmark.secret import from_hex, to_hex

    paths = list(expand(images, sys.stdin))
    targets = _targets(paths, out, format)
    scheme = read_scheme(payload_key, payload_bits, 64) if codec == "pixel" else None
    check_choice(secret, principal, scheme, account if codec == "pixel" else None)
    asked = disclosing(c2pa_cert, c2pa_key, disclose)  # a bad certificate is said before any work
    if asked and asked.provider and any(target.suffix.lower() == ".gif" for target in targets):
        raise typer.BadParameter("disclosures go into PNG, JPEG and WebP: give --format")
    code = 0
    with opened(registry, actor) if principal or c2pa_cert or c2pa_key else nullcontext() as keys:
        ring = ring_for(keys, key)
        marker = (
            _pixel_marker(ring, quality, vae, strength)
            if codec == "pixel"
            else _latent_marker(codec, vae, strength, ring)
        )
        if codec != "pixel":
            scheme = read_scheme(payload_key, payload_bits, marker.length)
            check_choice(secret, principal, scheme, account)
        tell_key(ring)
        finish = one_at_a_time(signing(keys, asked))
        if finish and keys is not None and principal is None:
            if secret == "random":
                raise typer.BadParameter(
                    "a manifest names a key of the registry: give --secret or --principal"
                )
            keys.manifests.check([from_hex(given(secret, "secrets"), marker.length)])

        def jobs_of() -> Iterator[_Job]:
            for path, target in zip(paths, targets, strict=True):
                bits = None
                if not target.exists():
                    reason = f"embed {path.name}"
                    (bits,) = secrets_for(1, marker.length, secret, principal, scheme, account, keys, reason)
                yield _Job(path, target, bits)

        def work(job: _Job) -> dict[str, Any]:
            return {} if job.bits is None else marker.write(job.path, job.bits, job.target, finish)

        with marker.quiet():
            done = in_order(work, jobs_of(), (jobs or cores()) if codec == "pixel" else 1)
            for job, result in track(done, "marking", len(paths)):
                record: dict[str, Any] = {"source": str(job.path), "file": str(job.target)}
                if job.bits is None:
                    record["skipped"], line = "there already", f"{job.target}  skipped: there already"
                elif isinstance(result, (ImageError, OSError)):
                    if principal is not None and keys is not None:
                        keys.revoke(key=to_hex(job.bits), reason="its image was not marked")
                    code, record = 2, {"source": str(job.path), "error": str(result)}
                    line = f"{job.path}  error: {str(result).removeprefix(f'{job.path}: ')}"
                elif isinstance(result, BaseException):
                    raise result
                else:
                    record |= {**result, "account": account, "principal": principal}
                    line = f"{job.target}  secret {to_hex(job.bits)}{marker.words(record)}"
                    append_record(job.target.parent / RECORDS, record)
                typer.echo(json.dumps(record) if as_json else line)
    raise typer.Exit(code)


@dataclass(frozen=True)
class _Job:
    """One file to mark; without bits it is there already."""

    path: Path
    target: Path
    bits: Any


def one_at_a_time(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The same function for several threads, where it is not made for them."""
    if function is None:
        return None
    lock = threading.Lock()

    def run(*args: Any) -> Any:
        with lock:
            return function(*args)

    return run


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Any], Any], jobs: Iterable[Any], workers: int
) -> Iterator[tuple[Any, Any | BaseException]]:
    """Jobs and what `work` gave or raised, in their order; a few ahead are at work on so many threads.

    Most of the time is spent inside numpy, scipy and Pillow, which let other threads run.
    """
    ahead: deque[tuple[Any, Future[Any]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for job in jobs:
            ahead.append((job, pool.submit(work, job)))
            if len(ahead) > workers:
                first, future = ahead.popleft()
                yield first, future.exception() or future.result()
        for first, future in ahead:
            yield first, future.exception() or future.result()


class _Marker:
    """Marks one file after another: `mark` gives the picture, its source and what to record."""

    def __init__(self, length: int, mark: Callable[[Path, Any], tuple[Any, Any, dict[str, Any]]]) -> None:
        self.length, self._mark = length, mark

    def write(
        self, path: Path, bits: Any, target: Path, finish: Callable[..., dict[str, Any]] | None
    ) -> dict[str, Any]:
        image, picture, record = self._mark(path, bits)
        return record | _write(image, picture, target, bits, finish)

    @staticmethod
    @contextmanager
    def quiet() -> Iterator[None]:
        """No warnings about marks: notes are printed instead. For all threads, as warnings are."""
        import warnings

        from diffmark.pixel.codec import MarkWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MarkWarning)
            yield

    @staticmethod
    def words(record: dict[str, Any]) -> str:
        """What was reached, for people."""
        notes = "".join(f"\n  note: {note}" for note in record["notes"])
        bits = f"{record['bits_read']} of {record['bits']} bits read back"
        if "ssimulacra2" in record:
            return f"  SSIMULACRA2 {record['ssimulacra2']:.1f}, {bits}{notes}"
        return (
            f"  PSNR {'infinite' if record['psnr'] is None else round(record['psnr'], 1)} dB, {bits}{notes}"
        )


def _pixel_marker(ring: KeyRing, quality: float | None, vae: str | None, strength: float | None) -> _Marker:
    from diffmark.images import read_image
    from diffmark.pixel.animation import Animation, mark_animation
    from diffmark.pixel.codec import PixelCodec

    if vae is not None or strength is not None:
        raise typer.BadParameter("--vae and --strength are for latent codecs: the pixel layer has --quality")
    codec = PixelCodec(ring.current)

    def mark(path: Path, bits: Any) -> tuple[Any, Any, dict[str, Any]]:
        animation = Animation.open(path)
        if animation is not None:
            frames, marked = mark_animation(animation, codec, bits, quality)
            return frames, animation, marked
        picture = read_image(path)
        found = codec.embed(picture, bits, quality)
        return found.image, picture, found.to_dict()

    return _Marker(codec.length, mark)


def _latent_marker(codec: str, vae: str | None, strength: float | None, ring: KeyRing) -> _Marker:
    from diffmark.detection.latent import Detector
    from diffmark.images import read_image
    from diffmark.mark.image import embed as mark_latent
    from diffmark.metrics import psnr
    from diffmark.secret import to_hex

    detector = Detector.from_pretrained(codec, vae, ring=ring)
    dose = 1.0 if strength is None else strength

    def mark(path: Path, bits: Any) -> tuple[Any, Any, dict[str, Any]]:
        picture = read_image(path)
        image = mark_latent(picture, detector.codec, detector.vae, bits, dose)
        reached, read = psnr(picture.image, image), detector.detect(image, to_hex(bits)).matches or 0
        notes = [*picture.notes]
        if reached < SEEN_PSNR:
            notes.append(f"PSNR {reached:.1f} dB: the mark is seen by anybody; --codec pixel is not")
        if dose == 0:
            notes.append("a strength of 0 writes no mark: the picture is not marked")
        elif read < detector.length:
            notes.append(
                f"{read} of {detector.length} bits are read back: this picture may not be found again"
            )
        record = {"secret": to_hex(bits), "strength": dose, "key_id": ring.current.id}
        record |= {
            "psnr": None if math.isinf(reached) else round(reached, 2),
            "bits_read": read,
            "bits": detector.length,
            "notes": notes,
        }
        return image, picture, record

    return _Marker(detector.length, mark)


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


def _write(
    image: Any, picture: Any, target: Path, bits: Any, finish: Callable[..., dict[str, Any]] | None
) -> dict[str, Any]:
    """Write a marked image with its source's metadata, and sign it; it is complete before it takes its place."""
    from diffmark.metadata import save_with_metadata

    target.parent.mkdir(parents=True, exist_ok=True)
    partial, name = target.with_name(f"{target.name}.part"), FORMATS[target.suffix.lower()]
    try:
        if isinstance(image, list):  # frames
            picture.save(image, partial, name)
        else:
            save_with_metadata(image, picture, partial, name, QUALITY)
        added = finish(partial, bits, f"image/{name.lower()}", Path(picture.source)) if finish else {}
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return added
