"""The audit log: append-only, each entry sealed with the digest of the one before it (SHA-256).

Editing, removing or reordering entries breaks the chain, and removing the last ones contradicts the recorded
head. Somebody who can rewrite the whole database could forge a new chain: note the head that `verify` prints
somewhere else from time to time, and give it back to `verify` to prove that the log still contains it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from diffmark.registry import schema

START = "0" * 64  # what the first entry follows
HEAD = "audit_head"  # setting: number and digest of the last entry


@dataclass(frozen=True)
class Entry:
    """Who did what, when, as what, why; digests of what was asked and answered."""

    seq: int
    time: int
    actor: str
    role: str
    action: str
    reason: str
    query_digest: str
    result_digest: str
    previous: str

    @property
    def digest(self) -> str:
        """Seal of this entry and, through `previous`, of all before it."""
        return digest_of(asdict(self))


@dataclass(frozen=True)
class Verification:
    """Result of checking the chain: `problems` is empty if every entry is as it was written."""

    entries: int
    head: str
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was edited, removed or reordered."""
        return not self.problems


def digest_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def append(
    connection: Connection, actor: str, role: str, action: str, reason: str, query: Any, result: Any
) -> Entry:
    """Write the next entry inside the caller's write transaction: both become durable, or neither."""
    head = connection.scalar(select(schema.settings.c.value).where(schema.settings.c.name == HEAD))
    seq, previous = (int(head.split(":")[0]), head.split(":")[1]) if head else (0, START)
    entry = Entry(
        seq + 1, schema.now(), actor, role, action, reason, digest_of(query), digest_of(result), previous
    )
    connection.execute(insert(schema.audit).values(**asdict(entry), digest=entry.digest))
    value = f"{entry.seq}:{entry.digest}"
    if head:
        connection.execute(update(schema.settings).where(schema.settings.c.name == HEAD).values(value=value))
    else:
        connection.execute(insert(schema.settings).values(name=HEAD, value=value))
    return entry


def verify(connection: Connection, anchor: str | None = None) -> Verification:
    """Check every entry, the recorded head, and that `anchor` (a head noted earlier) is still in the log."""
    problems: list[str] = []
    seq, previous = 0, START
    anchored = anchor is None
    for row in connection.execute(select(schema.audit).order_by(schema.audit.c.seq)):
        fields = dict(row._mapping)
        written = fields.pop("digest")
        entry = Entry(**fields)
        if entry.seq != seq + 1:
            problems.append(f"entries {seq + 1} ... {entry.seq - 1} were removed")
        elif entry.previous != previous:
            problems.append(f"entry {entry.seq} does not follow entry {seq}: edited, replaced or reordered")
        if entry.digest != written:
            problems.append(f"entry {entry.seq} was edited: its digest does not fit its content")
        seq, previous = entry.seq, written
        anchored = anchored or f"{seq}:{written}" == anchor
    head = connection.scalar(select(schema.settings.c.value).where(schema.settings.c.name == HEAD))
    found = f"{seq}:{previous}"
    if head and head != found:
        problems.append(f"the log should end with entry {head.split(':')[0]} and ends with {seq}")
    elif not head and seq:
        problems.append("the record of the last entry was removed")
    if not anchored:
        problems.append(f"the noted entry {anchor} is not in the log: it was rewritten or cut")
    count = connection.scalar(select(func.count()).select_from(schema.audit)) or 0
    return Verification(count, found, tuple(problems))


def entries(connection: Connection, last: int = 20) -> list[Entry]:
    """The latest entries, oldest first."""
    rows = connection.execute(select(schema.audit).order_by(schema.audit.c.seq.desc()).limit(last)).all()
    fields = [{name: value for name, value in row._mapping.items() if name != "digest"} for row in rows]
    return [Entry(**field) for field in reversed(fields)]
