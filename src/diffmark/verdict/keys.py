"""The operator's signing key for verdicts, and the public keys that others check them with (JWK, RFC 8037)."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from diffmark.private import check_private, create_private


class SigningKey:
    """An Ed25519 private key. Its id is the JWK thumbprint (RFC 7638) of its public half."""

    __slots__ = ("_key", "id")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.id = key_id(key.public_key())

    @classmethod
    def create(cls, path: Path) -> SigningKey:
        """A new key in a new PEM file that only its owner can read."""
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        create_private(Path(path), pem.decode())
        return cls(key)

    @classmethod
    def from_file(cls, path: str | Path) -> SigningKey:
        """From a PEM file; one that others can read is refused."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such key file; make one with `diffmark verdict key {path}`")
        check_private(path, "a signing key")
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{path}: not a private key in PEM without a passphrase") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path}: verdicts are signed with Ed25519, not with {type(key).__name__}")
        return cls(key)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    @property
    def public(self) -> Ed25519PublicKey:
        return self._key.public_key()

    def __repr__(self) -> str:
        return f"SigningKey(id={self.id!r})"


class PublicKeys:
    """Public keys by id."""

    def __init__(self, *keys: Ed25519PublicKey) -> None:
        self._keys = {key_id(key): key for key in keys}

    def get(self, identifier: str) -> Ed25519PublicKey | None:
        return self._keys.get(identifier)

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def from_file(cls, path: str | Path) -> PublicKeys:
        """From a JWK set, one JWK, or a PEM file."""
        path = Path(path)
        data = path.read_bytes()
        try:
            if data.lstrip().startswith(b"{"):
                return cls.from_jwks(json.loads(data))
            key = load_pem_public_key(data)
        except (ValueError, KeyError, TypeError, RecursionError, UnsupportedAlgorithm) as error:
            raise ValueError(f"{path}: neither a JWK set nor a public key in PEM") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"{path}: verdicts are checked with Ed25519, not with {type(key).__name__}")
        return cls(key)

    @classmethod
    def from_jwks(cls, document: dict[str, Any]) -> PublicKeys:
        """From a JWK set (RFC 7517) or one JWK; keys of other kinds are left out."""
        found = document.get("keys", [document])
        own = [jwk for jwk in found if (jwk.get("kty"), jwk.get("crv")) == ("OKP", "Ed25519")]
        return cls(*(Ed25519PublicKey.from_public_bytes(_decode(jwk["x"])) for jwk in own))

    def to_jwks(self) -> dict[str, Any]:
        """The JWK set that is served at /.well-known/."""
        return {"keys": [jwk(key) for key in self._keys.values()]}


def jwk(key: Ed25519PublicKey) -> dict[str, str]:
    """A public key as JSON."""
    return {"kty": "OKP", "crv": "Ed25519", "x": _x(key), "kid": key_id(key), "use": "sig", "alg": "EdDSA"}


def key_id(key: Ed25519PublicKey) -> str:
    """The JWK thumbprint."""
    required = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": _x(key)}, separators=(",", ":"))
    return base64.urlsafe_b64encode(hashlib.sha256(required.encode()).digest()).rstrip(b"=").decode()


def _x(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
