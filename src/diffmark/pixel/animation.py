"""Animated GIF, WebP and APNG: every frame carries the same secret."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

from diffmark.images import MAX_PIXELS, ImageError, open_image
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import Bits

MAX_FRAMES = 2000
DEFAULT_MS = 100  # of a frame that does not say how long it is shown


@dataclass(frozen=True, eq=False)
class Animation:
    """Frames as RGB pictures, and how long each is shown."""

    source: str
    frames: list[Image.Image]
    durations: list[int]  # milliseconds
    loop: int

    @classmethod
    def open(cls, path: Path) -> Animation | None:
        """The animation in a file; None if it holds one picture, or is none at all."""
        try:
            with open_image(path) as image:
                count = getattr(image, "n_frames", 1)
                if count == 1:
                    return None
                if count > MAX_FRAMES or count * image.width * image.height > 4 * MAX_PIXELS:
                    raise ImageError(f"{path}: {count} frames of {image.width}x{image.height} are too many")
                frames, durations = [], []
                for frame in ImageSequence.Iterator(image):
                    frames.append(frame.convert("RGB"))  # WebP tells a frame's duration once it is decoded
                    durations.append(int(frame.info.get("duration") or DEFAULT_MS))
                return cls(str(path), frames, durations, int(image.info.get("loop", 0)))
        except ImageError:
            raise
        except Exception:  # whatever is wrong with it is told when it is read as a picture
            return None

    def save(self, frames: list[Image.Image], path: Path, format: str) -> None:
        """Write other frames in the place of these."""
        if format == "JPEG":
            raise ImageError(f"{self.source}: a JPEG cannot hold an animation; write .gif, .webp or .png")
        more: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
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
