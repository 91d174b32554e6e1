"""XMP packets: the fields that disclose a generated image, put beside what a packet says already, and read back.

IPTC Photo Metadata 2025.1: DigitalSourceType, AISystemUsed, AISystemVersionUsed. GB 45438-2025: one JSON object in
the field AIGC of the namespace that TC260's guide for image files names.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

NAMESPACES = {
    "x": "adobe:ns:meta/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "xmpMM": "http://ns.adobe.com/xap/1.0/mm/",
    "Iptc4xmpExt": "http://iptc.org/std/Iptc4xmpExt/2008-02-29/",
    "TC260": "http://www.tc260.org.cn/ns/AIGC/1.0/",
}
SOURCE_TYPES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
AIGC_FIELDS = (
    "Label",
    "ContentProducer",
    "ProduceID",
    "ReservedCode1",
    "ContentPropagator",
    "PropagateID",
    "ReservedCode2",
)
MAX_BYTES, MAX_DEPTH = 1_000_000, 100  # of a packet that is parsed; elements in elements
HEAD, TAIL = '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>', '<?xpacket end="w"?>'

for _prefix, _name in NAMESPACES.items():
    ET.register_namespace(_prefix, _name)


@dataclass(frozen=True)
class Fields:
    """What an image discloses; what is None is not written."""

    source_type: str | None = None  # the last part of the IPTC term, as trainedAlgorithmicMedia
    provider: str | None = None
    system: str | None = None
    version: str | None = None
    time: str | None = None  # ISO 8601
    identifier: str | None = None  # urn:uuid:...
    aigc: dict[str, str] | None = None


def write(fields: Fields, existing: bytes = b"") -> bytes:
    """A packet with these fields; others that `existing` holds are kept, the same ones replaced."""
    root, rdf = _opened(existing)
    values: dict[str, Any] = {
        "Iptc4xmpExt:DigitalSourceType": fields.source_type and SOURCE_TYPES + fields.source_type,
        "Iptc4xmpExt:AISystemUsed": fields.system,
        "Iptc4xmpExt:AISystemVersionUsed": fields.version,
        "xmp:CreateDate": fields.time,
        "xmpMM:DocumentID": fields.identifier,
        "TC260:AIGC": fields.aigc and json.dumps(fields.aigc, ensure_ascii=False, separators=(",", ":")),
    }
    values = {_full(name): value for name, value in values.items() if value}
    publisher = _full("dc:publisher")
    for old in list(rdf):
        for name in [*values, *([publisher] if fields.provider else [])]:
            old.attrib.pop(name, None)
            for child in old.findall(name):
                old.remove(child)
    description = ET.SubElement(rdf, _full("rdf:Description"), {_full("rdf:about"): ""})
    for name, value in values.items():
        ET.SubElement(description, name).text = value
    if fields.provider:
        bag = ET.SubElement(ET.SubElement(description, publisher), _full("rdf:Bag"))
        ET.SubElement(bag, _full("rdf:li")).text = fields.provider
    return f"{HEAD}{ET.tostring(root, 'unicode')}{TAIL}".encode()


def read(packet: bytes) -> Fields:
    """The fields of a packet; what cannot be read is None."""
    _, rdf = _opened(packet)
    found: dict[str, str] = {}
    publisher = None
    for description in rdf:
        found.update(description.attrib)
        found.update({child.tag: child.text or "" for child in description})
        for entry in description.iterfind(f"{_full('dc:publisher')}//{_full('rdf:li')}"):
            publisher = entry.text

    def field(name: str) -> str | None:
        return (found.get(_full(name)) or "").strip() or None

    kind = field("Iptc4xmpExt:DigitalSourceType")
    return Fields(
        source_type=kind.rpartition("/")[2] if kind else None,
        provider=publisher,
        system=field("Iptc4xmpExt:AISystemUsed"),
        version=field("Iptc4xmpExt:AISystemVersionUsed"),
        time=field("xmp:CreateDate"),
        identifier=field("xmpMM:DocumentID"),
        aigc=read_aigc(field("TC260:AIGC")),
    )


def read_aigc(text: str | None) -> dict[str, str] | None:
    """The known AIGC fields of a JSON object, which may be wrapped in another under "AIGC"."""
    try:
        value = json.loads(text or "null")
    except (ValueError, RecursionError):  # the latter for nesting without end
        return None
    if isinstance(value, dict) and isinstance(value.get("AIGC"), dict):
        value = value["AIGC"]
    if not isinstance(value, dict) or "Label" not in value:
        return None
    return {name: str(value[name]) for name in AIGC_FIELDS if isinstance(value.get(name), str | int)}


def _opened(packet: bytes) -> tuple[ET.Element, ET.Element]:
    """The tree of a packet and its rdf:RDF; an empty one if there is none, or it is no XMP."""
    if packet and len(packet) <= MAX_BYTES and b"<!" not in packet:  # no document types, no entities
        start, end = packet.find(b"<x:xmpmeta"), packet.rfind(b"</x:xmpmeta>")
        try:
            root = ET.fromstring(packet[start : end + len(b"</x:xmpmeta>")])
            rdf = root.find(_full("rdf:RDF"))
            if rdf is not None and _depth(root) <= MAX_DEPTH:
                root.tag = _full(
                    "x:xmpmeta"
                )  # also where the prefix stood for another name: readers look for it
                return root, rdf
        except (ET.ParseError, ValueError):
            pass
    root = ET.Element(_full("x:xmpmeta"))
    return root, ET.SubElement(root, _full("rdf:RDF"))


def _depth(root: ET.Element) -> int:
    """How many elements lie in one another."""
    depth, level = 0, [root]
    while level:
        depth, level = depth + 1, [child for element in level for child in element]
    return depth


def _full(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{NAMESPACES[prefix]}}}{local}"
