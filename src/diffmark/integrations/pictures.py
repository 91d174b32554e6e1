"""Encoded images in, encoded images of the same format with a mark out."""

from __future__ import annotations

import base64
import binascii
import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

from PIL import Image

from diffmark.images import ImageError, read_image
from diffmark.metadata import read_metadata
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import SecretLike

FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "MPO": "JPEG", "WEBP": "WEBP"}
QUALITY = 95  # of lossy formats
MAX_UNPACKED_BYTES = 100_000_000  # bytes of an image in an archive
DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,([A-Za-z0-9+/=]+)")
ENCODED = ("b64_json", "partial_image_b64")  # fields that hold an image file as base64
CALL = ("result", "image_generation_call")  # the same in an item of this type, of the Responses API
ADDRESSES = ("url", "image_url")
CITATION = "url_citation"  # of a page, not of an image

MarkFile = Callable[[bytes], bytes]


def mark_bytes(image: bytes, secret: SecretLike, codec: PixelCodec) -> bytes:
    """An image file with its mark, in its own format (PNG where that is no PNG, JPEG or WebP)."""
    picture = read_image(image)
    with Image.open(io.BytesIO(image)) as original:
        form = FORMATS.get(original.format or "", "PNG")
        if getattr(original, "n_frames", 1) > 1:
            raise ImageError("an animation: only single pictures are marked here")
    marked, buffer = codec.embed(picture, secret).image, io.BytesIO()
    marked.save(buffer, form, quality=QUALITY, **_metadata(image, picture))
    return buffer.getvalue()


def mark_archive(archive: bytes, mark: MarkFile) -> bytes:
    """A ZIP archive of image files, as vLLM-Omni gives for several images, with each of them marked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as given, zipfile.ZipFile(buffer, "w") as made:
        for member in given.infolist():
            if member.file_size > MAX_UNPACKED_BYTES:  # as it says of itself; no more than that is unpacked
                raise ImageError(f"an archive with a file of more than {MAX_UNPACKED_BYTES:,} bytes")
            made.writestr(member.filename, mark(given.read(member)))
    return buffer.getvalue()


def mark_values(value: Any, mark: MarkFile, cited: bool = False) -> Any:
    """A JSON value whose images are marked, wherever they are: base64 fields and data addresses, in texts too.

    Images behind other addresses cannot be marked: an ImageError says so. The address of a `cited` page is none.
    """
    if isinstance(value, list):
        return [mark_values(part, mark) for part in value]
    if isinstance(value, str):
        return DATA_URL.sub(lambda found: _marked_address(found, mark), value)
    if not isinstance(value, dict):
        return value
    done, kind = {}, value.get("type")
    page = cited or kind == CITATION
    for name, part in value.items():
        if isinstance(part, str) and (name in ENCODED or (name, kind) == CALL):
            done[name] = _encoded(mark(_decoded(part)))
        elif isinstance(part, str) and name in ADDRESSES and not part.startswith("data:") and not page:
            raise ImageError("an image behind an address cannot be marked: ask for response_format b64_json")
        else:
            done[name] = mark_values(part, mark, name == CITATION)
    return done


def _marked_address(found: re.Match[str], mark: MarkFile) -> str:
    marked = mark(_decoded(found[1]))
    kind = Image.open(io.BytesIO(marked)).get_format_mimetype()
    return f"data:{kind};base64,{_encoded(marked)}"


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ImageError(f"an image that is not base64: {error}") from error


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _metadata(image: bytes, picture: Any) -> dict[str, Any]:
    """Its own metadata, as far as it can be read from memory."""
    from dataclasses import replace

    return read_metadata(replace(picture, source=io.BytesIO(image)))
