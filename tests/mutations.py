"""Damaged image files: real ones of every format, with bytes flipped, cut, repeated, or numbers made extreme."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image, features

FORMATS = {
    "PNG": {},
    "JPEG": {"quality": 80},
    "WEBP": {},
    "GIF": {},
    "TIFF": {"compression": "tiff_lzw"},
    "BMP": {},
    "ICO": {},
    "PPM": {},
}
if features.check("avif"):
    FORMATS["AVIF"] = {}
if features.check("jpg_2000"):
    FORMATS["JPEG2000"] = {}
EXTREMES = (
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\x00\x00",
)


def originals() -> dict[str, bytes]:
    """One small file a format, with EXIF where the format has it."""
    waves = np.sin(np.arange(48 * 48 * 3).reshape(48, 48, 3) / 97)
    picture = Image.fromarray(np.uint8(127 + 120 * waves))
    exif = Image.Exif()
    exif[0x0112] = 6  # a rotation, so that the reader has to act on it
    files = {}
    for name, options in FORMATS.items():
        buffer = io.BytesIO()
        more = {"exif": exif} if name in ("PNG", "JPEG", "WEBP", "TIFF") else {}
        picture.save(buffer, name, **options, **more)
        files[name] = buffer.getvalue()
    return files


def mutated(count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` damaged files, the formats in turn; the same ones for the same seed."""
    rng = np.random.default_rng(seed)
    files = list(originals().values())
    for number in range(count):
        data = bytearray(files[number % len(files)])
        for _ in range(int(rng.integers(1, 5))):
            data = _mutate(data, rng)
        yield bytes(data)


def _mutate(data: bytearray, rng: np.random.Generator) -> bytearray:
    kind, size = int(rng.integers(6)), max(len(data), 1)
    head = int(rng.integers(min(size, 200)))  # most of what a decoder believes stands in the head
    place = head if rng.random() < 0.6 else int(rng.integers(size))
    length = int(rng.integers(1, 64))
    if kind == 0:
        for at in rng.integers(size, size=8):
            data[at : at + 1] = rng.integers(256, size=1).astype(np.uint8).tobytes()
    elif kind == 1:
        data = data[: max(place, 8)]
    elif kind == 2:
        data[place : place + 4] = EXTREMES[int(rng.integers(len(EXTREMES)))]
    elif kind == 3:
        data[place:place] = data[place : place + length] * int(rng.integers(1, 20))
    elif kind == 4:
        del data[place : place + length]
    else:
        data[place : place + length] = rng.integers(256, size=length).astype(np.uint8).tobytes()
    return data
