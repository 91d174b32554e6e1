"""What a file's metadata declare, without any trust in them: metadata can be written and removed by anybody."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import Image

from diffmark.disclosure import xmp

AI_TYPES = ("trainedAlgorithmicMedia", "compositeWithTrainedAlgorithmicMedia", "algorithmicMedia")
XMP_CHUNK = "XML:com.adobe.xmp"


@dataclass(frozen=True)
class Declared:
    """The fields of system provenance. Personal data, as a photographer's name, are not among them."""

    source_type: str | None
    provider: str | None
    system: str | None
    version: str | None
    aigc: dict[str, str] | None

    @property
    def by_ai(self) -> bool:
        """Whether they say that the image was made or changed by AI."""
        return self.source_type in AI_TYPES or (self.aigc or {}).get("Label") in ("1", "2", "3")


def declared_in(data: bytes) -> Declared | None:
    """What the XMP of an image file declares; None if it says nothing of how the image was made."""
    fields = xmp.read(packet_in(data))
    found = Declared(fields.source_type, fields.provider, fields.system, fields.version, fields.aigc)
    return found if found.source_type or found.aigc or found.system else None


def packet_in(data: bytes) -> bytes:
    """The XMP packet of an image file; empty if there is none. Pixels are not decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                packet = image.info.get("xmp") or image.info.get(XMP_CHUNK) or b""
    except Exception:  # Pillow raises a dozen kinds on damaged files; they have no metadata then
        return b""
    return packet.encode() if isinstance(packet, str) else packet
