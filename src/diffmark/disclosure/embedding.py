"""XMP written into image files as they are: pixels and all other parts stay, byte for byte."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from diffmark.disclosure import xmp
from diffmark.disclosure.declared import XMP_CHUNK, packet_in

PNG, JPEG_XMP = b"\x89PNG\r\n\x1a\n", b"http://ns.adobe.com/xap/1.0/\0"
XMP_FLAG, ALPHA_FLAG = 0x04, 0x10  # of a WebP's VP8X chunk


def disclose(path: Path, fields: xmp.Fields) -> None:
    """Put fields into a PNG, JPEG or WebP; what its XMP says besides is kept."""
    data = path.read_bytes()
    packet = xmp.write(fields, packet_in(data))
    if data.startswith(PNG):
        write = _png
    elif data.startswith(b"\xff\xd8"):
        write = _jpeg
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        write = _webp
    else:
        raise ValueError(f"{path}: disclosures go into PNG, JPEG and WebP")
    try:
        made = write(data, packet)
    except (struct.error, IndexError) as error:
        raise ValueError(f"{path}: damaged, its parts cannot be told apart") from error
    partial = path.with_name(path.name + ".xmp")
    partial.write_bytes(made)
    os.replace(partial, path)


def _png(data: bytes, packet: bytes) -> bytes:
    """An iTXt chunk after the header, in place of one that is there."""
    text = XMP_CHUNK.encode() + b"\0\0\0\0\0" + packet  # not compressed, no language, no translation
    parts, start = [], len(PNG)
    while start + 12 <= len(data):
        (length,) = struct.unpack(">I", data[start : start + 4])
        kind, end = data[start + 4 : start + 8], start + 12 + length
        if not (kind == b"iTXt" and data[start + 8 :].startswith(XMP_CHUNK.encode() + b"\0")):
            parts.append(data[start:end])
        start = end
    check = zlib.crc32(b"iTXt" + text)
    parts.insert(1, struct.pack(">I", len(text)) + b"iTXt" + text + struct.pack(">I", check))
    return PNG + b"".join(parts)


def _jpeg(data: bytes, packet: bytes) -> bytes:
    """An APP1 segment after the first ones, in place of one that is there."""
    if len(packet) + len(JPEG_XMP) + 2 > 0xFFFF:
        raise ValueError("the XMP of this JPEG is too long for one segment")
    parts, start, place = [data[:2]], 2, 1
    while data[start : start + 1] == b"\xff" and data[start + 1] != 0xDA:
        (length,) = struct.unpack(">H", data[start + 2 : start + 4])
        segment = data[start : start + 2 + length]
        if not segment[4:].startswith(JPEG_XMP):
            parts.append(segment)
            if segment[1] in (0xE0, 0xE1):  # JFIF and Exif come first
                place = len(parts)
        start += 2 + length
    body = JPEG_XMP + packet
    parts.insert(place, b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body)
    return b"".join(parts) + data[start:]


def _webp(data: bytes, packet: bytes) -> bytes:
    """A chunk "XMP " at the end, and the flag for it in the extended header, which is made if there is none."""
    chunks, start = [], 12
    while start + 8 <= len(data):
        (length,) = struct.unpack("<I", data[start + 4 : start + 8])
        chunks.append((data[start : start + 4], data[start + 8 : start + 8 + length]))
        start += 8 + length + length % 2
    chunks = [(kind, body) for kind, body in chunks if kind != b"XMP "]
    if chunks[0][0] != b"VP8X":
        chunks.insert(0, (b"VP8X", _extended(*chunks[0])))
    header = bytearray(chunks[0][1])
    header[0] |= XMP_FLAG
    chunks[0] = (b"VP8X", bytes(header))
    chunks.append((b"XMP ", packet))
    body = b"".join(
        kind + struct.pack("<I", len(part)) + part + b"\0" * (len(part) % 2) for kind, part in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _extended(kind: bytes, body: bytes) -> bytes:
    """The extended header of a simple WebP: its flags and its size."""
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", body[1:5])
        width, height, flags = bits & 0x3FFF, bits >> 14 & 0x3FFF, ALPHA_FLAG * (bits >> 28 & 1)
    else:
        width, height = (value - 1 & 0x3FFF for value in struct.unpack("<HH", body[6:10]))
        flags = 0
    return bytes([flags, 0, 0, 0]) + width.to_bytes(3, "little") + height.to_bytes(3, "little")
