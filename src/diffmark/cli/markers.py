"""Marks one file after another in either layer, and writes it with its source's metadata."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from diffmark.keys.ring import KeyRing

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".gif": "GIF"}
QUALITY = 95  # of lossy formats; PNG takes no notice
VISIBLE_PSNR = 30.0  # dB, below which the mark of a latent codec is seen by anybody


class Marker:
    """Marks one file after another: `mark` gives the picture, its source and what to record."""

    def __init__(self, length: int, mark: Callable[[Path, Any], tuple[Any, Any, dict[str, Any]]]) -> None:
        self.length, self._mark = length, mark

    def write(
        self,
        path: Path,
        bits: Any,
        target: Path,
        finish: Callable[..., dict[str, Any]] | None,
        log: Callable[[dict[str, Any]], None],
    ) -> dict[str, Any]:
        """What is recorded of a file: it is logged before the file takes its place, so that no secret is lost."""
        image, picture, record = self._mark(path, bits)
        format = FORMATS[target.suffix.lower()]
        with _partial(target) as partial:
            _save(image, picture, partial, format)
            if finish:
                record |= finish(partial, bits, f"image/{format.lower()}", Path(picture.source))
            log(record)
            os.replace(partial, target)
        return record

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


def pixel_marker(ring: KeyRing, quality: float | None, vae: str | None, strength: float | None) -> Marker:
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

    return Marker(codec.length, mark)


def latent_marker(codec: str, vae: str | None, strength: float | None, ring: KeyRing) -> Marker:
    from diffmark.detection.latent import Detector
    from diffmark.images import read_image
    from diffmark.mark.generation import NO_MARK
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
        if reached < VISIBLE_PSNR:
            notes.append(f"PSNR {reached:.1f} dB: the mark is seen by anybody; --codec pixel is not")
        if dose == 0:
            notes.append(NO_MARK)
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

    return Marker(detector.length, mark)


@contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """A place beside a file's own, where it becomes complete; what is left there is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _save(image: Any, picture: Any, path: Path, format: str) -> None:
    """A marked picture, or the frames of an animation, with its source's metadata."""
    from diffmark.metadata import save_with_metadata

    if isinstance(image, list):  # frames
        picture.save(image, path, format)
    else:
        save_with_metadata(image, picture, path, format, QUALITY)
