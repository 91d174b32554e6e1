"""The tables, the same on SQLite and PostgreSQL, and the migrations that make them.

Ids of keys are contiguous (1, 2, 3, ...) and rows are never deleted: the largest id is the number of keys.
Times are microseconds since 1970, UTC. A key is stored as the signed 64-bit number with the same bits.
"""

from __future__ import annotations

import secrets
import time
import uuid

from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, MetaData, Table, Text, select

from diffmark.registry.errors import RegistryError
from diffmark.registry.index import STARTS, WIDTHS

HANDLE_KEY = "handle_key"  # setting: hex of the key that makes the public handles of keys
CACHE_ID = "cache"  # setting: a cache with another id is of other rows; a restored registry gets a new one
metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # SQLite's INTEGER has 64 bits and makes the row id

keys = Table(
    "keys",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=False),
    Column("key", BigInteger, nullable=False),
    Column("principal", Text, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("expires", BigInteger),
    Column("revoked", BigInteger),
    Column("context", Text),  # JSON: model, endpoint, policy, ...
)
audit = Table(
    "audit",
    metadata,
    Column("seq", _number, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("query_digest", Text, nullable=False),
    Column("result_digest", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("digest", Text, nullable=False),
)
settings = Table(
    "settings", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False)
)
grants = Table(
    "grants", metadata, Column("actor", Text, primary_key=True), Column("role", Text, primary_key=True)
)
requests = Table(
    "requests",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=False),
    Column("principal", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("approved_by", Text),
    Column("used", BigInteger),
)
identities = Table(
    "identities",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("sealing_key", Text, nullable=False),  # fingerprint, so that rotation knows what is left
)
manifests = Table(
    "manifests",
    metadata,
    Column("id", Text, primary_key=True),  # the URN of the active manifest
    Column("key_id", BigInteger, nullable=False),
    Column("handle", Text, nullable=False, index=True),
    Column("created", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),  # the manifest store, JUMBF
)
fingerprints = Table(
    "fingerprints",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=False),  # 1, 2, 3, ...
    Column("key_id", BigInteger, nullable=False),
    *(Column(f"word_{i}", BigInteger, nullable=False) for i in range(4)),  # 256 bits, signed as keys are
    Column("created", BigInteger, nullable=False),
)
migrations = Table(
    "migrations", metadata, Column("name", Text, primary_key=True), Column("time", BigInteger, nullable=False)
)


def now() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def part_expression(part: int) -> str:
    """SQL for the value of one part of the key; the same text as in the index, so that the index is used."""
    shift = 64 - STARTS[part] - WIDTHS[part]
    return f"((key >> {shift}) & {2 ** WIDTHS[part] - 1})" if shift else f"(key & {2 ** WIDTHS[part] - 1})"


def key_indexes(dialect: str) -> dict[str, str]:
    """Name and definition of each index on the keys: uniqueness, principal, and one a part for searching."""
    indexes = {
        "keys_key": "CREATE UNIQUE INDEX keys_key ON keys (key)",
        "keys_principal": "CREATE INDEX keys_principal ON keys (principal)",
    }
    for part in range(len(WIDTHS)):
        columns = f"({part_expression(part)}, key)"
        if dialect == "postgresql":
            columns = f"(({part_expression(part)})) INCLUDE (id, key)"
        indexes[f"keys_part_{part}"] = f"CREATE INDEX keys_part_{part} ON keys {columns}"
    return indexes


def create_keys(connection: Connection) -> None:
    """The issued keys and what is known of the registry itself."""
    keys.create(connection)
    for definition in key_indexes(connection.dialect.name).values():
        connection.exec_driver_sql(definition)
    settings.create(connection)
    connection.execute(settings.insert().values(name=CACHE_ID, value=str(uuid.uuid4())))


def create_audit(connection: Connection) -> None:
    """The audit log; the database itself refuses to change or delete its entries."""
    audit.create(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(
            "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'audit entries are append-only'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "EXECUTE FUNCTION audit_is_append_only()"
        )
    else:
        for change in ("UPDATE", "DELETE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER audit_append_only_{change.lower()} BEFORE {change} ON audit "
                "BEGIN SELECT RAISE(ABORT, 'audit entries are append-only'); END"
            )


def create_governance(connection: Connection) -> None:
    """Who holds which role, requests to resolve a pseudonym, and the sealed identities."""
    for table in (grants, requests, identities):
        table.create(connection)


def create_manifests(connection: Connection) -> None:
    """C2PA manifests of marked images, and the key of the handles that they name keys by."""
    manifests.create(connection)
    connection.execute(settings.insert().values(name=HANDLE_KEY, value=secrets.token_hex(32)))


def create_fingerprints(connection: Connection) -> None:
    """Perceptual fingerprints of marked images."""
    fingerprints.create(connection)


MIGRATIONS = (create_keys, create_audit, create_governance, create_manifests, create_fingerprints)


def pending(connection: Connection) -> list[str]:
    """Names of the migrations that this database still lacks; refuses a database of a newer version."""
    has_table = connection.dialect.has_table(connection, "migrations")
    applied = set(connection.scalars(select(migrations.c.name))) if has_table else set()
    known = [step.__name__ for step in MIGRATIONS]
    if unknown := applied - set(known):
        raise RegistryError(
            f"the registry has migrations {sorted(unknown)} that this version of diffmark does not know: "
            "use the version that wrote it, or a newer one"
        )
    return [name for name in known if name not in applied]


def migrate(connection: Connection) -> list[str]:
    """Bring the database up to date inside the caller's write transaction; returns what was applied."""
    missing = pending(connection)
    migrations.create(connection, checkfirst=True)
    for step in MIGRATIONS:
        if step.__name__ in missing:
            step(connection)
            connection.execute(migrations.insert().values(name=step.__name__, time=now()))
    return missing
