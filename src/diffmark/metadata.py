"""What an image file says besides its pixels, kept when the picture is written again."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile, PngImagePlugin
from PIL.ExifTags import Base

from diffmark.images import UNUSED_PROFILE, ImageError, Picture, open_image

XMP_CHUNK = "XML:com.adobe.xmp"  # of a PNG
COPIES = {f"Raw profile type {name}" for name in ("exif", "APP1", "icc", "icm")}  # text chunks of other parts

# Tags of a TIFF that describe how its own pixels lie; the new file's lie otherwise, and upright.
STRUCTURE = (
    Base.NewSubfileType, Base.SubfileType, Base.ImageWidth, Base.ImageLength, Base.BitsPerSample, Base.Compression,
    Base.PhotometricInterpretation, Base.FillOrder, Base.StripOffsets, Base.Orientation, Base.SamplesPerPixel,
    Base.RowsPerStrip, Base.StripByteCounts, Base.PlanarConfiguration, Base.Predictor, Base.ColorMap,
    Base.TileWidth, Base.TileLength, Base.TileOffsets, Base.TileByteCounts, Base.ExtraSamples, Base.SampleFormat,
    Base.JPEGTables, Base.XMLPacket, Base.InterColorProfile,
)  # fmt: skip
ORIENTATION = re.compile(rb'tiff:Orientation="\d"|<tiff:Orientation>\d</tiff:Orientation>')


def read_metadata(picture: Picture) -> dict[str, Any]:
    """EXIF, XMP, resolution, comment and text of the file that a picture was read from, as options of PIL's `save`.

    A format takes the options that it has a place for. The colour profile is among them only where the pixels are
    still in its colours: `read_image` converts them to sRGB.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is odd in it; it stays so
            with open_image(picture.source) as original:
                return _options(original, picture)
    except Exception as error:  # Pillow raises a dozen kinds on damaged files
        raise ImageError(f"{picture.source}: its metadata cannot be read ({error})") from error


def save_with_metadata(image: Image.Image, picture: Picture, path: Path, format: str, quality: int) -> None:
    """Write an image with the metadata of the file that `picture` was read from."""
    metadata = read_metadata(picture)
    try:
        image.save(path, format, quality=quality, **metadata)
    except ValueError as error:  # EXIF or XMP that is too long for a JPEG
        raise ImageError(f"{picture.source}: cannot be written as {format}: {error}") from error


def _options(original: ImageFile.ImageFile, picture: Picture) -> dict[str, Any]:
    exif = _exif(original)  # first: a TIFF is closed once its pixels are loaded
    text = getattr(original, "text", {})
    xmp = ORIENTATION.sub(b"", _bytes(original.info.get("xmp", b"")))
    return {
        "exif": exif,
        "xmp": xmp,
        "pnginfo": _png_text(text, xmp),
        "icc_profile": _profile(original, picture),
        **_comment(original),
        **_resolution(original),
    }


def _exif(original: ImageFile.ImageFile) -> bytes:
    exif = original.getexif()
    for tag in STRUCTURE:
        exif.pop(tag, None)
    return exif.tobytes() if len(exif) else b""


def _png_text(text: dict[str, Any], xmp: bytes) -> PngImagePlugin.PngInfo:
    chunks = PngImagePlugin.PngInfo()
    for name, value in text.items():
        if name in COPIES or name == XMP_CHUNK:
            continue
        if isinstance(value, PngImagePlugin.iTXt):
            chunks.add_itxt(name, value, value.lang or "", value.tkey or "")
        else:
            chunks.add_text(name, value)
    if xmp:
        chunks.add_itxt(XMP_CHUNK, xmp.decode("utf-8", "replace"))
    return chunks


def _profile(original: ImageFile.ImageFile, picture: Picture) -> bytes | None:
    unconverted = UNUSED_PROFILE in picture.notes and original.mode in ("RGB", "RGBA")
    return original.info.get("icc_profile") if unconverted else None


def _resolution(original: ImageFile.ImageFile) -> dict[str, Any]:
    dpi = tuple(map(float, original.info.get("dpi", ())))
    return {"dpi": dpi} if len(dpi) == 2 and all(1 <= value < 65536 for value in dpi) else {}


def _comment(original: ImageFile.ImageFile) -> dict[str, Any]:
    """Of a JPEG or GIF."""
    return {"comment": original.info["comment"]} if original.info.get("comment") else {}


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
