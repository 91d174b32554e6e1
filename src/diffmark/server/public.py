"""The public verifier: what a picture says of its origin, for anybody, without a token.

A coarse verdict with its rate of error, each basis named: the mark, signed credentials, metadata, a fingerprint.
No account, no margin and no p-value leaves it, so that it does not help to remove a mark; no picture is kept.
"""

from __future__ import annotations

import hashlib
import io
import ipaddress
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from diffmark.detection.decision import Detection
from diffmark.disclosure import declared_in
from diffmark.images import ImageError
from diffmark.server.fetching import FetchError, fetch
from diffmark.server.lane import Lane
from diffmark.server.limits import RateLimiter
from diffmark.server.service import Service
from diffmark.server.shared_limits import SharedLimiter
from diffmark.server.words import Words
from diffmark.verdict import SigningKey, statement_of
from diffmark.verdict.jws import flattened
from diffmark.verdict.statement import detector

FETCH_SECONDS = 15.0
FETCHES = 8  # addresses that are fetched or wait at a time


class Basis(BaseModel):
    """One thing that a verdict may rest on."""

    basis: str = Field(examples=["watermark"], description="watermark, credentials, metadata or fingerprint.")
    found: bool | None = Field(description="null: it was not looked for, or cannot be told.")
    words: str
    details: dict[str, str] = Field(description="System provenance only; no personal data.")


class PublicAnswer(BaseModel):
    """What the file says of its origin."""

    verdict: str = Field(examples=["marked"], description="marked, undecided, declared, similar or nothing.")
    headline: str
    sentences: list[str]
    error_rate: float = Field(description="Share of unmarked files that are called marked, at most.")
    sha256: str
    bytes: int
    time: str
    detector: dict[str, Any]
    bases: list[Basis]
    signed: dict[str, str] | None = Field(description="The verdict as a JWS; see /.well-known/jwks.json.")


class Feedback(BaseModel):
    """What somebody thinks of an answer. The address it comes from is not kept."""

    text: str = Field("", max_length=2000)
    agrees: bool | None = None
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    verdict: str = Field("", max_length=20)


@dataclass
class Public:
    """What the public routes work with."""

    service: Service
    feedback: Path
    signing: SigningKey | None = None
    issuer: str | None = None
    trust: Path | None = None  # PEM of the roots that credentials are trusted under
    fetch: Callable[[str, int, float], bytes] = fetch

    def __post_init__(self) -> None:
        self.lane = Lane("addresses", FETCHES)
        self.limiter: RateLimiter | SharedLimiter = RateLimiter(self.service.limits.of_the_public())

    def download(self, url: str) -> bytes:
        """The picture at an address; ImageError if it cannot or may not be fetched."""
        limits = self.service.limits
        try:
            return self.lane.run(
                lambda: self.fetch(url.strip(), limits.upload_bytes, FETCH_SECONDS), FETCH_SECONDS + 5
            )
        except FetchError as error:
            raise ImageError(str(error)) from error
        except TimeoutError as error:
            raise ImageError("the address answers too slowly") from error

    def verify(self, data: bytes, words: Words) -> PublicAnswer:
        """The answer on a file's bytes."""
        (found,) = self.service.detect([("image", data)])
        bases = [
            _watermark(found, words),
            self._credentials(data, words),
            _metadata(data, words),
            self._fingerprint(data, found, words),
        ]
        verdict = _verdict(found, bases)
        named = tuple(basis.basis for basis in bases if basis.found)
        signed = None
        if self.signing is not None:
            statement = statement_of(data, found, named or ("none",), exact=False, issuer=self.issuer)
            signed = flattened(statement.signed(self.signing))
        return PublicAnswer(
            verdict=verdict,
            headline=words(f"{verdict}_headline"),
            sentences=[words(f"{verdict}_sentence"), words("error_sentence", share=round(1 / found.fpr))],
            error_rate=found.fpr,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            detector=detector(found),
            bases=bases,
            signed=signed,
        )

    def _credentials(self, data: bytes, words: Words) -> Basis:
        """A signed C2PA manifest in the file."""
        from diffmark.c2pa import ManifestError, inspect_bytes

        try:
            seen = inspect_bytes(data, "image", self.trust)
        except ImportError:
            return Basis(basis="credentials", found=None, words=words("credentials_unread"), details={})
        except ManifestError:
            return Basis(basis="credentials", found=False, words=words("credentials_none"), details={})
        holds = seen.signature != "broken" and seen.content == "unchanged"
        state = "trusted" if seen.signature == "trusted" else "valid"
        said = words(f"credentials_{state}" if holds else "credentials_broken", signer=seen.signer)
        details = {"signer": seen.signer, "generator": seen.generator, "signature": seen.signature}
        details |= {"content": seen.content, "source_type": seen.source_type or ""}
        return Basis(basis="credentials", found=holds, words=said, details=details)

    def _fingerprint(self, data: bytes, found: Detection, words: Words) -> Basis:
        """A look-up by likeness, where no mark was read: the weaker basis."""
        if found.marked or self.service.fingerprints is None:
            return Basis(basis="fingerprint", found=None, words=words("fingerprint_unasked"), details={})
        match = self.service.fingerprints.known(io.BytesIO(data).getvalue())
        said = words("fingerprint_found" if match else "fingerprint_none")
        return Basis(basis="fingerprint", found=match, words=said, details={})

    def close(self) -> None:
        self.lane.close()


def _watermark(found: Detection, words: Words) -> Basis:
    seen = {"marked": True, "not marked": False}.get(found.verdict)
    said = {True: "watermark_found", False: "watermark_none", None: "watermark_undecided"}[seen]
    return Basis(basis="watermark", found=seen, words=words(said), details={"reader": found.reader})


def _metadata(data: bytes, words: Words) -> Basis:
    """IPTC's DigitalSourceType and the AIGC field of GB 45438-2025."""
    declared = declared_in(data)
    if declared is None:
        return Basis(basis="metadata", found=False, words=words("metadata_none"), details={})
    details = {
        "digital_source_type": declared.source_type,
        "provider": declared.provider,
        "system": declared.system,
        "version": declared.version,
        "aigc_label": (declared.aigc or {}).get("Label"),
        "aigc_producer": (declared.aigc or {}).get("ContentProducer"),
    }
    said = words("metadata_ai" if declared.by_ai else "metadata_other")
    shown = {name: value for name, value in details.items() if value}
    return Basis(basis="metadata", found=declared.by_ai, words=said, details=shown)


def _verdict(found: Detection, bases: list[Basis]) -> str:
    """One word for all: the mark first, then what the file declares, then likeness."""
    _, credentials, metadata, fingerprint = bases
    if found.marked:
        return "marked"
    if credentials.found or metadata.found:
        return "declared"
    if fingerprint.found:
        return "similar"
    return "undecided" if found.verdict == "undecided" else "nothing"


def network(address: str) -> str:
    """What questions are counted by: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
