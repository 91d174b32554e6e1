"""Backups: one SQLite file with every table, whatever database the registry lives in; restored into either."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, delete, func, select

from diffmark.registry import audit_log, schema
from diffmark.registry.access import current_actor
from diffmark.registry.errors import RegistryError, explained
from diffmark.registry.progress import watched
from diffmark.registry.registry import Registry
from diffmark.registry.store import Store

BLOCK = 50_000  # rows copied at a time


def backup(registry: Registry, path: Path, reason: str = "") -> int:
    """Write everything as of one moment to a new file; returns the number of keys."""
    if path.exists():
        raise FileExistsError(f"{path} exists: a backup never replaces a file")
    with registry.access.call("backup", reason) as connection:
        count = registry.store.count(connection)
        registry.access.record(connection, "backup", reason, path.name, count)
    partial = path.with_name(path.name + ".partial")
    _remove(partial)
    copy = Store(f"sqlite:///{partial}")
    try:
        with registry.store.read() as source, copy.write() as target:
            _copy(source, target)
        raw = copy.engine.raw_connection()
        raw.cursor().execute("PRAGMA journal_mode=DELETE")  # one file, no log beside it
        raw.close()
    except BaseException:
        copy.close()
        _remove(partial)
        raise
    copy.close()
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)
    return count


def restore(path: Path, url: str, actor: str | None = None, reason: str = "") -> int:
    """Fill the empty registry at `url` from a backup; returns the number of keys. Checks the audit log first."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file: give the backup to restore")
    target = Store(url)
    try:
        with _opened(path) as source, source.read() as reading, target.write() as writing:
            problems = audit_log.verify(reading).problems
            if problems:
                raise RegistryError(f"{path}: the audit log of this backup is broken: {'; '.join(problems)}")
            if target.count(writing) or writing.execute(select(schema.audit.c.seq).limit(1)).first():
                raise RegistryError(f"{target.place} is in use: restore into a new database")
            _copy(reading, writing)
            # Rows will now go another way than in the registry that was backed up: no cache of it may be used.
            target.put_setting(writing, schema.CACHE_ID, str(uuid.uuid4()))
            count = target.count(writing)
            audit_log.append(writing, actor or current_actor(), "", "restore", reason, path.name, count)
    finally:
        target.close()
    return count


@contextmanager
def _opened(path: Path) -> Iterator[Store]:
    """A backup to read; one of an older version is brought up to date in a copy, the file stays as it is."""
    url = f"sqlite:///file:{path.absolute()}?mode=ro&uri=true"
    engine = create_engine(url)
    with explained(str(path), sqlite3.Error), engine.connect() as connection:
        if not connection.dialect.has_table(connection, "migrations"):
            raise RegistryError(f"{path} is not a backup of a registry")
        old = bool(schema.pending(connection))
    engine.dispose()
    with tempfile.TemporaryDirectory() as folder:
        if old:
            url = f"sqlite:///{shutil.copy(path, folder)}"
        store = Store(url)
        try:
            yield store
        finally:
            store.close()


def _copy(source: Connection, target: Connection) -> None:
    """Every row of every table; the target holds nothing but what its migrations put there."""
    for table in (schema.settings, schema.migrations):
        target.execute(delete(table))
    for table in schema.metadata.sorted_tables:
        rows = source.execution_options(yield_per=BLOCK).execute(select(table))
        blocks = -(-(source.scalar(select(func.count()).select_from(table)) or 0) // BLOCK)
        for block in watched(rows.partitions(), f"copying {table.name}", blocks):
            target.execute(table.insert(), [dict(row._mapping) for row in block])


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
