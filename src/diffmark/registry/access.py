"""Who may do what: three roles, and a trace of every call.

An operator issues and revokes keys, an auditor identifies, an investigator resolves pseudonyms. Whoever makes
the registry holds all three; a role is given on by somebody who holds it.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from diffmark.registry import audit_log, schema
from diffmark.registry.errors import NotPermitted, RegistryError
from diffmark.registry.store import Store

ROLES = ("operator", "auditor", "investigator")
ACTIONS = {  # action: the roles of which one is needed
    "issue": ("operator",),
    "import": ("operator",),
    "revoke": ("operator",),
    "expire": ("operator",),
    "list": ("operator",),
    "export": ("operator",),
    "backup": ("operator",),
    "set identity": ("operator",),
    "store manifest": ("operator",),
    "log fingerprint": ("operator",),
    "set operator key": ("operator",),
    "identify": ("auditor",),
    "match manifests": ROLES,
    "read manifest": ROLES,
    "stats": ROLES,
    "read log": ROLES,
    "request": ("investigator",),
    "resolve": ("investigator",),
    "rotate": ("investigator",),
    "require approval": ("investigator",),
}


def current_actor() -> str:
    """DIFFMARK_ACTOR, or the name of the operating system's user."""
    return os.environ.get("DIFFMARK_ACTOR") or getpass.getuser()


class Access:
    """One actor at one registry."""

    def __init__(self, store: Store, actor: str | None = None) -> None:
        self.store = store
        self.actor = actor or current_actor()
        with store.read() as connection:
            unclaimed = not _grants(connection)
        if unclaimed:
            with store.write() as connection:
                if not _grants(connection):  # still: another process may have been first
                    rows = [{"actor": self.actor, "role": role} for role in ROLES]
                    connection.execute(insert(schema.grants), rows)
                    audit_log.append(connection, self.actor, "", "create", "", self.actor, list(ROLES))

    def roles(self, connection: Connection) -> set[str]:
        """The roles that this actor holds."""
        return {role for actor, role in _grants(connection) if actor == self.actor}

    def require(self, connection: Connection, action: str) -> str:
        """The role in which this actor may do this; raises NotPermitted without one."""
        held = self.roles(connection)
        for role in ACTIONS[action]:
            if role in held:
                return role
        raise NotPermitted(
            f"{self.actor!r} may not {action}: that needs the role {' or '.join(ACTIONS[action])}, "
            f"and the roles held are {', '.join(sorted(held)) or 'none'}; somebody who holds it can give it "
            "with `diffmark registry grant`"
        )

    @contextmanager
    def call(self, action: str, reason: str) -> Iterator[Connection]:
        """A write transaction in which this actor may do `action`. A refusal is written down, too."""
        try:
            with self.store.write() as connection:
                self.require(connection, action)
                yield connection
        except NotPermitted as refusal:
            with self.store.write() as connection:
                audit_log.append(connection, self.actor, "", f"refused: {action}", reason, "", str(refusal))
            raise

    def record(self, connection: Connection, action: str, reason: str, query: Any, result: Any) -> None:
        """Write the audit entry of one call, inside its transaction: both become durable, or neither."""
        role = self.require(connection, action)
        audit_log.append(connection, self.actor, role, action, reason, query, result)

    def check(self, action: str, reason: str) -> None:
        """Refuse, and write the refusal down, before work is done outside a write transaction."""
        with self.store.read() as connection:
            allowed = set(ACTIONS[action]) & self.roles(connection)
        if not allowed:
            with self.call(action, reason):
                pass

    def grant(self, actor: str, role: str, reason: str = "") -> None:
        """Give a role to somebody; only a holder of the role may."""
        self._change("grant", actor, role, reason)

    def withdraw(self, actor: str, role: str, reason: str = "") -> None:
        """Take a role from somebody; only a holder of the role may, and one holder stays."""
        self._change("withdraw", actor, role, reason)

    def _change(self, action: str, actor: str, role: str, reason: str) -> None:
        if role not in ROLES:
            raise RegistryError(f"role {role!r} is not known: use {', '.join(ROLES)}")
        if not actor:
            raise RegistryError("the name of an actor must not be empty")
        table = schema.grants
        with self.store.write() as connection:
            if role not in self.roles(connection):
                raise NotPermitted(f"{self.actor!r} does not hold the role {role}, so cannot {action} it")
            held = (actor, role) in _grants(connection)
            if action == "grant" and not held:
                connection.execute(insert(table).values(actor=actor, role=role))
            if action == "withdraw" and held:
                if sum(other == role for _, other in _grants(connection)) == 1:
                    raise RegistryError(f"{actor!r} is the last {role}: give the role to somebody else first")
                connection.execute(delete(table).where(table.c.actor == actor, table.c.role == role))
            audit_log.append(connection, self.actor, role, action, reason, [actor, role], held)


def _grants(connection: Connection) -> set[tuple[str, str]]:
    return {(row.actor, row.role) for row in connection.execute(select(schema.grants))}
