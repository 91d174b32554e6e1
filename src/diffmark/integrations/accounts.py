"""Whose mark an image of a request gets: a key of the registry for the principal behind a token."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from diffmark.integrations.pictures import mark_bytes
from diffmark.keys.ring import as_ring
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.secret import to_hex

ANONYMOUS = "anonymous"
REGISTRY = "DIFFMARK_REGISTRY"


def principal_of_token(headers: Mapping[str, str]) -> str:
    """A pseudonym of the bearer token, always the same; `anonymous` without one. `headers` are in lower case."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        return ANONYMOUS
    return f"token-{hashlib.sha256(token.strip().encode()).hexdigest()[:16]}"


class Marker:
    """Issues a key an image and writes it into the pixel layer.

    The actor is DIFFMARK_ACTOR or the system's user, as on the command line: who makes a registry holds its roles.
    """

    def __init__(self, registry: Registry | str | None = None, codec: PixelCodec | None = None) -> None:
        given = os.environ.get(REGISTRY) if registry is None else registry
        if given is None:
            raise ValueError(f"no registry to issue keys from: give one, or set {REGISTRY}")
        self.registry = given if isinstance(given, Registry) else Registry.open(given)
        self.codec = codec or PixelCodec(as_ring().current)

    def mark(self, image: bytes, principal: str, context: Any = None) -> bytes:
        """The image file with a fresh key of the principal's; a key whose image fails is revoked again."""
        secret = self.registry.issue(principal, context=context, reason="an image of a response").secret
        try:
            return mark_bytes(image, secret, self.codec)
        except Exception:
            self.registry.revoke(key=to_hex(secret), reason="its image was not marked")
            raise
