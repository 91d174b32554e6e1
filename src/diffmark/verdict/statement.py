"""What a signed verdict says: which file, which detector, when, what was found, on which basis, how sure.

It never holds a secret, a margin, or an account.
"""

from __future__ import annotations

import hashlib
import platform
import time
import uuid
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from diffmark import __version__, pixel
from diffmark.detection.decision import Detection
from diffmark.provenance import code_digest
from diffmark.verdict import jws
from diffmark.verdict.keys import PublicKeys, SigningKey

VERSION = 1  # of the claims
BASES = ("watermark", "credentials", "metadata", "fingerprint", "none")  # what a verdict may rest on


@dataclass(frozen=True)
class Statement:
    """The claims."""

    sha256: str  # of the file
    bytes: int
    time: str  # UTC, ISO 8601
    id: str
    verdict: str  # marked, not marked, undecided
    basis: tuple[str, ...]
    test: str  # of the watermark: secret, payload, blind, none
    error_probability: float | None  # that a file without a mark gets this verdict; see `error_is`
    error_is: str  # exact: the p-value of this file; bound: the rate that verdicts are given at
    detector: dict[str, Any]
    issuer: str | None = None
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "basis": list(self.basis)}

    def signed(self, key: SigningKey) -> str:
        """The compact JWS."""
        return jws.sign(self.to_dict(), key)

    @classmethod
    def of(cls, claims: dict[str, Any]) -> Statement:
        """From claims whose signature was checked."""
        if claims.get("version") != VERSION:
            raise jws.BadSignature(
                f"verdicts of version {VERSION} are known, this one has {claims.get('version')}"
            )
        try:
            return cls(**{**claims, "basis": tuple(claims["basis"])})
        except (TypeError, KeyError) as error:
            raise jws.BadSignature("its claims are not those of a verdict") from error


def statement_of(
    data: bytes,
    found: Detection,
    basis: tuple[str, ...] = (),
    *,
    exact: bool = True,
    issuer: str | None = None,
) -> Statement:
    """The statement on a file's bytes. `exact=False` states the rate that verdicts are given at, no p-value."""
    if not basis:
        basis = ("watermark",) if found.marked else ("none",)
    if unknown := set(basis) - set(BASES):
        raise ValueError(f"a basis is one of {', '.join(BASES)}, got {', '.join(sorted(unknown))}")
    return Statement(
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        id=str(uuid.uuid4()),
        verdict=found.verdict,
        basis=basis,
        test=found.test,
        error_probability=found.p_value if exact else found.fpr,
        error_is="exact" if exact else "bound",
        detector=detector(found),
        issuer=issuer,
    )


def detector(found: Detection) -> dict[str, Any]:
    """Versions of what read the file."""
    return {
        "diffmark": __version__,
        "reader": found.reader,
        "readers_tried": found.tries,
        "reader_code": reader_code(),
        "operator_key": found.key_id,
        "false_positive_rate": found.fpr,
        "python": platform.python_version(),
    }


@cache
def reader_code() -> str:
    """A hash of the code of the pixel layer, whichever release it is of."""
    folder = Path(pixel.__file__).parent
    return code_digest(*(f"pixel/{path.stem}" for path in sorted(folder.glob("*.py"))))


def check(text: str, keys: PublicKeys, image: bytes | None = None) -> tuple[Statement, str]:
    """The statement of a signed verdict and the id of its key; BadSignature if it or the image was changed."""
    claims, key = jws.verify(text, keys)
    statement = Statement.of(claims)
    if image is not None and hashlib.sha256(image).hexdigest() != statement.sha256:
        raise jws.BadSignature("the verdict is about another file: the SHA-256 differs")
    return statement, key
