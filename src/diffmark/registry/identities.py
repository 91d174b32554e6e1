"""Who is behind a pseudonym: a separate table, sealed with a key from the environment, opened with a reason.

DIFFMARK_IDENTITY_KEYS holds one or more keys (32 bytes, URL-safe base64, separated by commas). The first one
seals, all open. To rotate: put a new key in front, run `diffmark registry rotate`, then remove the old one.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, insert, select, update

from diffmark.registry import audit_log, schema
from diffmark.registry.access import ROLES, Access
from diffmark.registry.errors import NotPermitted, RegistryError

VARIABLE = "DIFFMARK_IDENTITY_KEYS"
APPROVAL = "approval"  # setting: the role whose holder must approve, or empty


def new_sealing_key() -> str:
    """A fresh key for DIFFMARK_IDENTITY_KEYS."""
    return base64.urlsafe_b64encode(AESGCM.generate_key(256)).decode()


def sealing_keys() -> dict[str, AESGCM]:
    """Keys from the environment by fingerprint, the sealing one first."""
    found: dict[str, AESGCM] = {}
    for text in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            raw = base64.urlsafe_b64decode(text.strip())
            found[hashlib.sha256(raw).hexdigest()[:16]] = AESGCM(raw)
        except ValueError as error:
            raise RegistryError(
                f"{VARIABLE} must hold 32 bytes in URL-safe base64, comma-separated"
            ) from error
    if not found:
        raise RegistryError(
            f"{VARIABLE} is not set: identities are sealed with a key from the environment; "
            "`diffmark registry new-key` makes one"
        )
    return found


def seal(identity: str, principal: str) -> tuple[bytes, str]:
    """(nonce and ciphertext, fingerprint of the key). Bound to the principal: rows cannot be swapped."""
    fingerprint, cipher = next(iter(sealing_keys().items()))
    nonce = os.urandom(12)
    return nonce + cipher.encrypt(nonce, identity.encode(), principal.encode()), fingerprint


def unseal(sealed: bytes, principal: str, fingerprint: str) -> str:
    """The identity in a sealed row."""
    cipher = sealing_keys().get(fingerprint)
    if cipher is None:
        raise RegistryError(
            f"the identity of {principal!r} is sealed with key {fingerprint}, which {VARIABLE} lacks"
        )
    try:
        return cipher.decrypt(sealed[:12], sealed[12:], principal.encode()).decode()
    except InvalidTag as error:
        raise RegistryError(f"the sealed identity of {principal!r} was changed: restore a backup") from error


class Identities:
    """The sealed table, for one actor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.store = access.store

    def set(self, principal: str, identity: str, reason: str = "") -> None:
        """Seal who is behind a principal (operator); replaces what was there."""
        sealed, fingerprint = seal(identity, principal)
        table = schema.identities
        with self.access.call("set identity", reason) as connection:
            known = connection.scalar(select(table.c.principal).where(table.c.principal == principal))
            statement: Any = (
                insert(table) if known is None else update(table).where(table.c.principal == principal)
            )
            connection.execute(statement.values(principal=principal, sealed=sealed, sealing_key=fingerprint))
            self.access.record(connection, "set identity", reason, principal, known is not None)

    def request(self, principal: str, reason: str) -> int:
        """Ask for approval to resolve a principal (investigator); returns the number to approve."""
        table = schema.requests
        with self.access.call("request", reason) as connection:
            _check_reason(reason)
            number = len(connection.execute(select(table.c.id)).all()) + 1
            connection.execute(
                insert(table).values(id=number, principal=principal, actor=self.access.actor, reason=reason)
            )
            self.access.record(connection, "request", reason, principal, number)
        return number

    def approve(self, number: int, reason: str = "") -> None:
        """Approve somebody else's request, in the role that the registry asks for."""
        table = schema.requests
        with self.store.write() as connection:
            role = self._approval_role(connection)
            if not role:
                raise RegistryError(
                    "this registry asks for no approval: see `diffmark registry require-approval`"
                )
            if role not in self.access.roles(connection):
                raise NotPermitted(
                    f"{self.access.actor!r} does not hold the role {role}, which approves requests"
                )
            row = connection.execute(select(table).where(table.c.id == number)).first()
            if row is None or row.approved_by is not None:
                raise RegistryError(f"request {number} is {'unknown' if row is None else 'already approved'}")
            if row.actor == self.access.actor:
                raise NotPermitted(f"request {number} is {row.actor!r}'s own: somebody else must approve it")
            connection.execute(
                update(table).where(table.c.id == number).values(approved_by=self.access.actor)
            )
            audit_log.append(connection, self.access.actor, role, "approve", reason, number, row.principal)

    def require_approval(self, role: str, reason: str = "") -> None:
        """From now on resolving needs the approval of another person in this role; "" for none."""
        if role not in ("", *ROLES):
            raise RegistryError(f"role {role!r} is not known: use {', '.join(ROLES)} or an empty one")
        with self.access.call("require approval", reason) as connection:
            self.access.record(connection, "require approval", reason, role, self._approval_role(connection))
            self.store.put_setting(connection, APPROVAL, role)

    def resolve(self, principal: str, reason: str) -> str:
        """The identity behind a principal: for an investigator, with a reason, and approved if that is required.

        The audit entry is durable before the name is returned, and also when there is none.
        """
        table = schema.identities
        with self.access.call("resolve", reason) as connection:
            _check_reason(reason)
            if self._approval_role(connection):
                self._use_approval(connection, principal)
            row = connection.execute(select(table).where(table.c.principal == principal)).first()
            identity = None if row is None else unseal(row.sealed, principal, row.sealing_key)
            self.access.record(connection, "resolve", reason, principal, identity is not None)
        if identity is None:
            raise RegistryError(f"no identity is stored for principal {principal!r}")
        return identity

    def rotate(self, reason: str = "") -> int:
        """Seal everything anew with the first key of the environment; returns how many rows changed."""
        table = schema.identities
        current = next(iter(sealing_keys()))
        with self.access.call("rotate", reason) as connection:
            rows = connection.execute(select(table).where(table.c.sealing_key != current)).all()
            for row in rows:
                identity = unseal(row.sealed, row.principal, row.sealing_key)
                sealed, fingerprint = seal(identity, row.principal)
                connection.execute(
                    update(table)
                    .where(table.c.principal == row.principal)
                    .values(sealed=sealed, sealing_key=fingerprint)
                )
            self.access.record(connection, "rotate", reason, current, len(rows))
        return len(rows)

    def _approval_role(self, connection: Connection) -> str:
        return self.store.setting(connection, APPROVAL)

    def _use_approval(self, connection: Connection, principal: str) -> None:
        table = schema.requests
        number = connection.scalar(
            select(table.c.id)
            .where(table.c.principal == principal, table.c.actor == self.access.actor)
            .where(table.c.approved_by.is_not(None), table.c.used.is_(None))
            .order_by(table.c.id)
            .limit(1)
        )
        if number is None:
            raise NotPermitted(
                f"resolving {principal!r} needs an approved request: `diffmark registry request`, then "
                f"somebody else in the role {self._approval_role(connection)} runs `diffmark registry approve`"
            )
        connection.execute(update(table).where(table.c.id == number).values(used=schema.now()))


def _check_reason(reason: str) -> None:
    if not reason.strip():
        raise NotPermitted("resolving a pseudonym needs a stated reason, for example --reason 'case 4711'")
