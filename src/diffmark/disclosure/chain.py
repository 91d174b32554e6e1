"""A root certificate and a signer's certificate under it, for trying out: nobody trusts them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Certificates:
    """PEM files."""

    chain: Path
    key: Path
    root: Path


def make(folder: Path, days: int = 30) -> Certificates:
    """chain.pem, key.pem (mode 600) and root.pem in a folder."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("Test Root", root_key, "Test Root", root_key, days)
    leaf = _certificate("Test Signer", key, "Test Root", root_key, days)
    made = Certificates(folder / "chain.pem", folder / "key.pem", folder / "root.pem")
    made.chain.write_bytes(leaf.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM))
    made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made.key.chmod(0o600)
    made.root.write_bytes(root.public_bytes(Encoding.PEM))
    return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    now, authority = datetime.datetime.now(datetime.timezone.utc), name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=400))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(_usage(authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if not authority:
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(purpose, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    names = ("digital_signature", "key_cert_sign", "crl_sign")
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    flags = dict.fromkeys([*others, "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**flags, **dict(zip(names, (not authority, authority, authority), strict=True)))


def _name(text: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test"),
            x509.NameAttribute(NameOID.COMMON_NAME, text),
        ]
    )
