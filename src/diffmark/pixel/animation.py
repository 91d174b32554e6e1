"""Animated GIF, WebP and APNG: every frame carries the same secret."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile, ImageSequence

from diffmark.images import MAX_PIXELS, ImageError, Picture, open_image, read_image
from diffmark.metadata import read_metadata
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import Bits

MAX_FRAMES = 2000
DEFAULT_MS = 100  # of a frame that does not say how long it is shown


@dataclass(frozen=True, eq=False)
class Animation:
    """Frames as pictures are read, upright RGB, and how long each is shown."""

    source: str
    frames: list[Picture]
    durations: list[int]  # milliseconds
    loop: int

    @classmethod
    def open(cls, path: Path) -> Animation | None:
        """The animation in a file; None if it holds one picture, or is none at all."""
        try:
            image = open_image(path)
        except Exception:  # whatever is wrong with it is told when it is read as a picture
            return None
        with image:
            try:
                return cls._of(image, str(path))
            except ImageError:
                raise
            except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
                raise ImageError(f"{path}: damaged or truncated ({error})") from error

    @classmethod
    def _of(cls, image: ImageFile.ImageFile, source: str) -> Animation | None:
        count = getattr(image, "n_frames", 1)
        if count == 1:
            return None
        if count > MAX_FRAMES or count * image.width * image.height > 4 * MAX_PIXELS:
            raise ImageError(f"{source}: {count} frames of {image.width}x{image.height} are too many")
        frames, durations = [], []
        for frame in ImageSequence.Iterator(image):
            frames.append(replace(read_image(frame.copy()), source=source))
            # WebP tells a frame's duration once it is decoded.
            durations.append(int(frame.info.get("duration") or DEFAULT_MS))
        return cls(source, frames, durations, int(image.info.get("loop", 0)))

    def save(self, frames: list[Image.Image], path: Path, format: str) -> None:
        """Write other frames in the place of these, with the metadata of the file that these were read from."""
        if format == "JPEG":
            raise ImageError(f"{self.source}: a JPEG cannot hold an animation; write .gif, .webp or .png")
        more = read_metadata(self.frames[0])
        if format == "WEBP":
            more["lossless"] = True
        first, *rest = frames
        first.save(
            path, format, save_all=True, append_images=rest, duration=self.durations, loop=self.loop, **more
        )


def mark_animation(
    animation: Animation, codec: PixelCodec, secret: Bits, quality: float | None
) -> tuple[list[Image.Image], dict[str, Any]]:
    """Marked frames, and what was reached in the worst of them."""
    marked = [codec.embed(frame, secret, quality) for frame in animation.frames]
    worst = min(marked, key=lambda found: found.bits_read)
    record = worst.to_dict() | {"ssimulacra2": round(min(found.quality for found in marked), 1)}
    notes = dict.fromkeys(note for found in marked for note in found.notes)
    return [found.image for found in marked], record | {"frames": len(marked), "notes": list(notes)}
