"""The rows: the truth of the registry, in SQLite (one file) or PostgreSQL (by URL). One writer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError
from sqlalchemy.pool import StaticPool

from diffmark.private import is_private, touch_private
from diffmark.registry import schema
from diffmark.registry.errors import RegistryError, explained
from diffmark.registry.progress import waiting, watched
from diffmark.registry.query import Keys

READ_BLOCK = 1 << 20  # rows fetched at once
LOAD_BLOCK = 1 << 16  # rows made at once
LOCK = 0x6469666D  # PostgreSQL advisory lock of all writers ("difm")
LOCK_TIMEOUT = 60  # seconds that a writer waits for another


class Store:
    """One database; `read()` and `write()` give connections in a transaction."""

    def __init__(self, url: str) -> None:
        try:
            self.url = make_url(url)
        except ArgumentError:
            raise RegistryError(
                f"the registry URL cannot be read: {URLS}"
            ) from None  # it may hold a password
        self.dialect = self.url.get_backend_name()
        self.place = self.url.render_as_string(hide_password=True)
        if self.dialect not in ("sqlite", "postgresql"):
            raise RegistryError(f"registry URL {self.place} names {self.dialect!r}: {URLS}")
        self.engine = _sqlite(url) if self.dialect == "sqlite" else _postgresql(self.url)
        try:
            with self.read() as connection:
                missing = schema.pending(connection)
            self.inode = None if self.file is None else _identity(self.file)
            if missing:
                with self.write() as connection:
                    schema.migrate(connection)
        except BaseException:
            self.close()
            raise
        with self.read() as connection:
            self.cache_id = self.setting(connection, schema.CACHE_ID)

    @property
    def file(self) -> Path | None:
        """The database file of SQLite; None in memory and on PostgreSQL."""
        name = self.url.database
        named = self.dialect == "sqlite" and name and name != ":memory:" and not name.startswith("file:")
        return Path(str(name)) if named else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view of the rows."""
        with self._explained(), self.engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that keeps out all other writers, of any process; durable when it ends."""
        self._check_file()
        with self._explained(), self.engine.connect() as connection:
            connection = connection.execution_options(writing=True)
            with waiting(f"{self.place}: waiting for another process that writes, up to {LOCK_TIMEOUT} s"):
                transaction = connection.begin()
                if self.dialect == "postgresql":
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(1000 * LOCK_TIMEOUT)}")
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
            with transaction:
                yield connection

    def _check_file(self) -> None:
        """A file removed or replaced under an open connection would swallow what is written to it."""
        if self.file is not None and _identity(self.file) != self.inode:
            raise RegistryError(
                f"{self.place}: the file was removed or replaced while it was open: open it again"
            )

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self.place, self.engine.dialect.dbapi.Error)  # type: ignore[union-attr]

    def close(self) -> None:
        """Give back the connections."""
        self.engine.dispose()

    # --- settings --------------------------------------------------------------------------------------

    def setting(self, connection: Connection, name: str) -> str:
        """One of the registry's settings; empty if it is not set."""
        return connection.scalar(select(schema.settings.c.value).where(schema.settings.c.name == name)) or ""

    def put_setting(self, connection: Connection, name: str, value: str) -> None:
        """Set one of them."""
        table = schema.settings
        if connection.execute(update(table).where(table.c.name == name).values(value=value)).rowcount == 0:
            connection.execute(insert(table).values(name=name, value=value))

    # --- keys ------------------------------------------------------------------------------------------

    def count(self, connection: Connection) -> int:
        """Number of keys ever issued; ids are contiguous, so it is the largest id."""
        return connection.scalar(select(func.coalesce(func.max(schema.keys.c.id), 0))) or 0

    def keys(self, connection: Connection, after: int = 0, up_to: int | None = None) -> Iterator[Keys]:
        """Keys with after < id <= up_to, in the order of ids, in blocks."""
        last = self.count(connection) if up_to is None else up_to
        starts = range(after, last, READ_BLOCK)
        for start in watched(starts, "reading keys", len(starts)):
            stop = min(start + READ_BLOCK, last)
            rows = connection.exec_driver_sql(
                f"SELECT key FROM keys WHERE id > {start:d} AND id <= {stop:d} ORDER BY id"
            )
            block = np.fromiter((row[0] for row in rows), dtype=np.int64).view(np.uint64)
            if len(block) != stop - start:
                raise RegistryError(
                    f"{self.place}: {stop - start - len(block)} of the keys {start + 1} ... {stop} are "
                    "missing: rows were deleted by hand; restore a backup"
                )
            yield block

    def insert(
        self,
        connection: Connection,
        keys: Keys,
        principals: Sequence[str] | None,
        columns: Mapping[str, Sequence[Any] | int] | None = None,
    ) -> range:
        """Add keys under the next ids, all or nothing; principals are `key-<id>` if None.

        `columns` gives created, expires, revoked or context: one value for all (a number) or one a key. A load
        that outweighs what is there rebuilds the indexes after it, which is faster than growing them.
        """
        first = self.count(connection) + 1
        ids = range(first, first + len(keys))
        rebuild = len(keys) > 10_000 and len(keys) > 0.7 * first
        if rebuild:
            for name in schema.key_indexes(self.dialect):
                connection.exec_driver_sql(f"DROP INDEX {name}")
        try:
            given: dict[str, Sequence[Any] | int] = {"created": schema.now(), **(columns or {})}
            self._load(connection, ids, keys, principals, given)
            if rebuild:
                for definition in schema.key_indexes(self.dialect).values():
                    connection.exec_driver_sql(definition)
        except (IntegrityError, self.engine.dialect.dbapi.IntegrityError) as error:  # type: ignore[union-attr]
            raise RegistryError(
                f"{self.place}: one of the keys was issued before; nothing was added"
            ) from error
        return ids

    def _load(
        self,
        connection: Connection,
        ids: range,
        keys: Keys,
        principals: Sequence[str] | None,
        columns: dict[str, Sequence[Any] | int],
    ) -> None:
        if self.dialect == "sqlite":
            constant = {name: value for name, value in columns.items() if isinstance(value, int)}
            varying = {name: value for name, value in columns.items() if not isinstance(value, int)}
            names = ", ".join(["id", "key", "principal", *varying, *constant])
            marks = ", ".join(["?"] * (3 + len(varying)) + [str(value) for value in constant.values()])
            cursor = connection.connection.cursor()
            rows = _rows(ids, keys, principals, list(varying.values()))
            cursor.executemany(f"INSERT INTO keys ({names}) VALUES ({marks})", rows)  # type: ignore[arg-type]
            cursor.close()
            return
        every = [[value] * len(keys) if isinstance(value, int) else value for value in columns.values()]
        cursor = connection.connection.cursor()
        with cursor.copy(f"COPY keys ({', '.join(['id', 'key', 'principal', *columns])}) FROM STDIN") as copy:
            for row in _rows(ids, keys, principals, every):
                copy.write_row(row)
        cursor.close()

    def rows_of(self, connection: Connection, keys: Iterable[int]) -> dict[int, Any]:
        """The rows of these keys (unsigned)."""
        table = schema.keys
        wanted = [int(np.uint64(key).astype(np.int64)) for key in keys]
        rows: dict[int, Any] = {}
        for start in range(0, len(wanted), 500):
            for row in connection.execute(select(table).where(table.c.key.in_(wanted[start : start + 500]))):
                rows[row.key % 2**64] = row
        return rows

    def in_buckets(self, connection: Connection, part: int, values: Keys) -> Keys:
        """All keys whose part has one of these values, through that part's expression index."""
        expression = schema.part_expression(part)
        if self.dialect == "sqlite":
            statement = text(
                f"SELECT key FROM keys WHERE {expression} IN (SELECT value FROM json_each(:values))"
            )
            bound: Any = str(values.tolist())
        else:
            statement = text(f"SELECT key FROM keys WHERE {expression} = ANY(:values)")
            bound = values.tolist()
        rows = connection.execute(statement, {"values": bound})
        return np.fromiter((row[0] for row in rows), dtype=np.int64).view(np.uint64)


def _rows(
    ids: range, keys: Keys, principals: Sequence[str] | None, columns: list[Sequence[Any]]
) -> Iterator[tuple[Any, ...]]:
    """Rows to be added, made in blocks: a hundred million at once would not fit as Python numbers."""
    starts = range(0, len(keys), LOAD_BLOCK)
    for start in watched(starts, "loading keys", len(starts)):
        block = slice(start, start + LOAD_BLOCK)
        names = [f"key-{i}" for i in ids[block]] if principals is None else principals[block]
        numbers = keys[block].view(np.int64).tolist()
        yield from zip(ids[block], numbers, names, *(column[block] for column in columns), strict=True)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


URLS = "use sqlite:///path/to/file.db, postgresql://user@host/database or clickhouse://host/database?rows=URL"


def _private_file(path: Path) -> None:
    """The database of a registry names accounts and holds their keys: for its owner alone; -wal and -shm follow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        touch_private(path)
    elif path.is_file() and not is_private(path):
        mode = path.stat().st_mode & 0o777
        raise RegistryError(f"{path}: others can read this registry (mode {mode:o}): chmod 600 it first")


def _sqlite(url: str) -> Engine:
    memory = make_url(url).database in (None, "", ":memory:")
    arguments: dict[str, Any] = {"isolation_level": None, "timeout": LOCK_TIMEOUT}
    database = str(make_url(url).database)
    if memory:
        engine = create_engine(
            url,
            poolclass=StaticPool,
            connect_args=arguments | {"check_same_thread": False},
            hide_parameters=True,
        )
    else:
        if not database.startswith("file:"):
            _private_file(Path(database).absolute())
        engine = create_engine(url, connect_args=arguments, hide_parameters=True)  # keys are among them

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        connection.execute("PRAGMA synchronous=FULL")  # an acknowledged key survives a power cut
        connection.execute("PRAGMA cache_size=-262144")  # 256 MiB: large loads touch all indexes
        connection.execute("PRAGMA temp_store=MEMORY")
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode=WAL")
            except Exception as error:  # a read-only file can still be read
                if "readonly" not in str(error):
                    raise

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writing = connection.get_execution_options().get("writing")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _postgresql(url: Any) -> Engine:
    # Readers see one moment; writers take the advisory lock first and then see what the last writer wrote.
    engine = create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("writing"):
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    return engine
