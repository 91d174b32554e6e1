"""Tokens: credentials of the HTTP service. Random, shown once, kept as digests, with a role, an end and a way out.

A token's name is an actor of the registry and its role is granted there, so that the audit log names who asked.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, insert, select, update

from diffmark.registry import Registry
from diffmark.registry.access import ROLES

PREFIX = "dmk_"
_metadata = MetaData()
_tokens = Table(
    "tokens",
    _metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False),
    Column("role", String, nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("revoked", BigInteger),
)


@dataclass(frozen=True)
class Token:
    """What is known of a token; the token itself is not. Times in seconds since 1970."""

    id: int
    name: str
    role: str
    created: int
    expires: int
    revoked: int | None

    @property
    def status(self) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires <= time.time() else "live"


class Tokens:
    """The tokens of one service, in the registry's database."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        _metadata.create_all(engine)

    def create(self, name: str, role: str, days: float = 90) -> tuple[Token, str]:
        """A new token and its text, which is not kept."""
        if role not in ROLES:
            raise ValueError(f"role {role!r} is not known: use {', '.join(ROLES)}")
        if not name or days <= 0:
            raise ValueError(f"a token needs a name and a positive number of days, got {name!r} and {days}")
        text = PREFIX + secrets.token_urlsafe(32)
        now = int(time.time())
        values = {"name": name, "role": role, "created": now, "expires": now + round(days * 86400)}
        with self.engine.begin() as connection:
            made = connection.execute(insert(_tokens).values(digest=_digest(text), **values))
            number = made.inserted_primary_key
        assert number is not None
        return Token(number[0], revoked=None, **values), text  # type: ignore[arg-type]

    def revoke(self, number: int) -> None:
        """End a token now."""
        statement = update(_tokens).where(_tokens.c.id == number, _tokens.c.revoked.is_(None))
        with self.engine.begin() as connection:
            changed = connection.execute(statement.values(revoked=int(time.time()))).rowcount
        if not changed:
            raise ValueError(f"there is no live token number {number}")

    def all(self) -> list[Token]:
        with self.engine.connect() as connection:
            return [_token(row) for row in connection.execute(select(_tokens).order_by(_tokens.c.id))]

    def find(self, text: str) -> Token | None:
        """The live token with this text."""
        with self.engine.connect() as connection:
            row = connection.execute(select(_tokens).where(_tokens.c.digest == _digest(text))).first()
        found = _token(row) if row else None
        return found if found and found.status == "live" else None


def grant_token(registry: Registry, name: str, role: str, days: float = 90) -> tuple[Token, str]:
    """A token, and its role in the registry for the actor of that name."""
    made = Tokens(registry.store.engine).create(name, role, days)
    registry.access.grant(name, role, "token of the HTTP service")
    return made


def _token(row: object) -> Token:
    values = dict(row._mapping)  # type: ignore[attr-defined]
    values.pop("digest")
    return Token(**values)


def _digest(text: str) -> str:
    """SHA-256; a token has 256 random bits, so nothing slower is needed."""
    return hashlib.sha256(text.encode()).hexdigest()
