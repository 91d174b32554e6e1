"""`provider.toml`: who discloses, with which system, and how manifests are signed.

    name = "Example AI Ltd"
    system = "Example Painter"
    version = "3.1"

    [c2pa]                       # signed manifests; without this table only XMP is written
    certificate = "chain.pem"
    key = "key.pem"              # or: signer = ["./sign-with-kms", "key-7"], algorithm = "es256"
    ta_url = "http://timestamp.example.org"

    [aigc]                       # GB 45438-2025; without this table the field AIGC is not written
    producer = "001191110108MA01KP2T5U00000"
    propagator = "..."           # optional

Paths are relative to the file.
"""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffmark.disclosure.xmp import Fields

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE_TYPE = "trainedAlgorithmicMedia"
SOURCE_TYPES = (
    SOURCE_TYPE,
    "compositeWithTrainedAlgorithmicMedia",
    "algorithmicMedia",
    "algorithmicallyEnhanced",
)
TABLES = {
    "": ("name", "system", "version", "source_type", "c2pa", "aigc"),
    "c2pa": ("certificate", "key", "signer", "algorithm", "ta_url"),
    "aigc": ("producer", "propagator", "label"),
}


@dataclass(frozen=True)
class Provider:
    """One provider and one system."""

    name: str
    system: str
    version: str
    source_type: str = SOURCE_TYPE
    c2pa: dict[str, Any] = field(default_factory=dict)
    aigc: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_file(cls, path: Path) -> Provider:
        """From a TOML file; unknown or missing names are errors."""
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: not TOML: {error}") from error
        for table, known in TABLES.items():
            given = values.get(table, {}) if table else values
            if not isinstance(given, dict):
                raise ValueError(f"{path}: [{table}] is a table")
            if unknown := set(given) - set(known):
                raise ValueError(f"{path}: {', '.join(sorted(unknown))} is not known: use {', '.join(known)}")
        for name in ("name", "system", "version"):
            if not isinstance(values.get(name), str) or not values[name].strip():
                raise ValueError(f"{path}: {name} is needed, as text")
        if values.get("source_type", SOURCE_TYPE) not in SOURCE_TYPES:
            raise ValueError(
                f"{path}: source_type is one of {', '.join(SOURCE_TYPES)}, got {values['source_type']}"
            )
        if "aigc" in values and not values["aigc"].get("producer"):
            raise ValueError(f"{path}: [aigc] needs a producer")
        signing = dict(values.get("c2pa", {}))
        if "c2pa" in values:
            if "certificate" not in signing or ("key" in signing) == ("signer" in signing):
                raise ValueError(f"{path}: [c2pa] needs a certificate, and either a key or a signer")
            for name in ("certificate", "key"):
                if name in signing:
                    signing[name] = str(path.parent / signing[name])
                    if not Path(signing[name]).is_file():
                        raise ValueError(f"{path}: {name}: {signing[name]}: no such file")
            if "signer" in signing:
                first, *others = signing["signer"]
                own = path.parent / first
                signing["signer"] = [str(own.resolve()) if own.is_file() else first, *others]
        return cls(**{**values, "c2pa": signing})

    def disclosure(self) -> Disclosure:
        """What one image discloses: a new identifier, and the time now."""
        return Disclosure(
            self, f"urn:uuid:{uuid.uuid4()}", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        )


@dataclass(frozen=True)
class Disclosure:
    """A provider's statement on one image."""

    provider: Provider
    identifier: str
    time: str

    def to_dict(self) -> dict[str, str]:
        """For a manifest and a record."""
        own = self.provider
        return {
            "provider": own.name,
            "system": own.system,
            "version": own.version,
            "time": self.time,
            "id": self.identifier,
        }

    def fields(self) -> Fields:
        """For XMP."""
        own = self.provider
        return Fields(
            own.source_type, own.name, own.system, own.version, self.time, self.identifier, self._aigc()
        )

    def _aigc(self) -> dict[str, str] | None:
        """The fields of GB 45438-2025: label 1 is "made by AI". The reserved codes are left empty."""
        given = self.provider.aigc
        if not given:
            return None
        number = self.identifier.rpartition(":")[2]
        return {
            "Label": given.get("label", "1"),
            "ContentProducer": given["producer"],
            "ProduceID": number,
            "ReservedCode1": "",
            "ContentPropagator": given.get("propagator", ""),
            "PropagateID": number if given.get("propagator") else "",
            "ReservedCode2": "",
        }
