"""JSON Web Signatures with Ed25519 (RFC 7515, RFC 8037): compact, and the flattened JSON form."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from cryptography.exceptions import InvalidSignature

from diffmark.verdict.keys import PublicKeys, SigningKey

TYPE = "diffmark-verdict+jws"
MAX_BYTES = 64 * 1024  # of a signed verdict
PARTS = ("protected", "payload", "signature")


class BadSignature(ValueError):  # noqa: N818 - named after what it says
    """This is not a statement that one of the known keys signed."""


def sign(claims: dict[str, Any], key: SigningKey) -> str:
    """The compact form: header, claims and signature in base64url, with points between."""
    header = {"alg": "EdDSA", "kid": key.id, "typ": TYPE}
    signed = f"{_encode(_json(header))}.{_encode(_json(claims))}"
    return f"{signed}.{_encode(key.sign(signed.encode()))}"


def verify(text: str, keys: PublicKeys) -> tuple[dict[str, Any], str]:
    """Claims of a signed statement in either form, and the id of the key that signed it; raises BadSignature."""
    if len(text) > MAX_BYTES:
        raise BadSignature(f"this is longer than {MAX_BYTES:,} bytes, so not a signed verdict")
    protected, payload, signature = _parts(text.strip())
    try:
        header, claims, mark = (
            json.loads(_decode(protected)),
            json.loads(_decode(payload)),
            _decode(signature),
        )
    except (ValueError, RecursionError) as error:  # the latter for nesting without end
        raise BadSignature("this is not a signed verdict: its parts are not JSON in base64url") from error
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise BadSignature("this is not a signed verdict: its parts are not JSON objects")
    if header.get("alg") != "EdDSA" or header.get("typ") != TYPE:
        raise BadSignature(
            f"a signed verdict is EdDSA and {TYPE}, got {header.get('alg')} and {header.get('typ')}"
        )
    key = keys.get(str(header.get("kid")))
    if key is None:
        raise BadSignature(f"it was signed with the key {header.get('kid')}, which is not among those given")
    try:
        key.verify(mark, f"{protected}.{payload}".encode())
    except InvalidSignature as error:
        raise BadSignature("the signature does not hold: it was changed after it was signed") from error
    return claims, str(header["kid"])


def flattened(compact: str) -> dict[str, str]:
    """The same signature as JSON: for files."""
    return dict(zip(PARTS, compact.split("."), strict=True))


def compact(text: str) -> str:
    """The compact form of a signature in either form."""
    return ".".join(_parts(text.strip()))


def _parts(text: str) -> tuple[str, str, str]:
    if text.startswith("{"):
        try:
            document = json.loads(text)
            found = tuple(document[name] for name in PARTS)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadSignature(f"this is not a signed verdict: JSON with {', '.join(PARTS)}") from error
    else:
        found = tuple(text.split("."))
    if len(found) != 3 or not all(isinstance(part, str) and part.isascii() for part in found):
        raise BadSignature("this is not a signed verdict: it has not three parts")
    return found[0], found[1], found[2]


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    if _encode(data) != text:  # several spellings of one signature are none
        raise ValueError("not canonical base64url")
    return data
