"""Past one machine: the keys in ClickHouse, sharded, searched where they lie.

The rows stay the truth: a SQLite or PostgreSQL registry allocates keys and keeps the audit log (ClickHouse has no
unique constraint and no transactions). ClickHouse holds (id, key) as a cache that is filled from the rows; every
shard filters by cost first, so that only a handful of keys is ordered and sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from diffmark.registry.access import Access
from diffmark.registry.errors import RegistryError
from diffmark.registry.query import Hits, Query, ordered
from diffmark.registry.registry import Registry
from diffmark.registry.store import Store


def open_clickhouse(url: str, actor: str | None = None) -> Registry:
    """clickhouse://user:password@host:port/database?rows=URL, and optionally &cluster=NAME and &secure=1.

    `rows` is the URL-encoded address of the SQLite or PostgreSQL registry whose keys are searched.
    """
    parts = urlsplit(url)
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if "rows" not in options:
        raise RegistryError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: ClickHouse searches keys that a SQL registry issues; "
            "name it as ?rows=postgresql%3A%2F%2Fhost%2Fdatabase"
        )
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import ClickHouseError

    store = Store(options["rows"])
    try:
        client = clickhouse_connect.get_client(
            host=parts.hostname or "localhost",
            port=parts.port or 0,
            username=unquote(parts.username or "default"),
            password=unquote(parts.password or ""),
            database=parts.path.strip("/") or "default",
            secure=options.get("secure") == "1",
            settings={"insert_distributed_sync": 1},  # an insert is over when every shard has its keys
        )
        searcher = ClickHouseSearcher(store, client, options.get("cluster"))
    except ClickHouseError as error:
        store.close()
        raise RegistryError(
            f"ClickHouse at {parts.hostname}: cannot be reached or refused: {error}"
        ) from error
    return Registry(store, searcher, Access(store, actor))


class ClickHouseSearcher:
    """The same interface as `search.Searcher`, over tables in ClickHouse; `client` is clickhouse_connect's."""

    def __init__(self, store: Store, client: Any, cluster: str | None = None) -> None:
        self.store = store
        self.client = client
        self.table = f"diffmark_keys_{store.cache_id.replace('-', '')}"
        self.setting = (
            f"clickhouse {cluster or ''}"  # how many rows are there; kept with the rows, not in ClickHouse
        )
        for statement in table_statements(self.table, cluster):
            client.command(statement)

    def search(
        self, queries: Sequence[Query], top: int, within: int | None = None, path: str | None = None
    ) -> tuple[list[Hits], str]:
        """The best `top` keys of each query; one statement each."""
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        if path not in (None, "clickhouse"):
            raise ValueError(f"path must be clickhouse, got {path!r}")
        count = self.refresh()
        return [self._search(query, top, within, count) for query in queries], "clickhouse"

    def _search(self, query: Query, top: int, within: int | None, count: int) -> Hits:
        worst = len(query.distribution) - 1 if within is None else within
        expected = int(np.searchsorted(query.distribution, (top + 3 * top**0.5 + 3) / max(count, 1)))
        limit = min(expected, worst)
        while True:
            rows = self.client.query(search_statement(self.table, query, top, limit)).result_rows
            if len(rows) >= top or limit >= worst:
                costs = np.array([row[1] for row in rows], dtype=np.int64)
                return ordered(costs, np.array([row[0] for row in rows], dtype=np.uint64), top)
            limit = min(2 * limit + 1, worst)

    def refresh(self) -> int:
        """Copy the rows that are not in ClickHouse yet; one process at a time, repeated parts do no harm.

        Returns the number of keys that are there now.
        """
        with self.store.read() as connection:
            count = self.store.count(connection)
            done = int(self.store.setting(connection, self.setting) or 0)
        if done >= count:
            return done
        with self.store.write() as connection:
            done = int(self.store.setting(connection, self.setting) or 0)
            for keys in self.store.keys(connection, after=done):
                ids = np.arange(done + 1, done + len(keys) + 1, dtype=np.uint64)
                self.client.insert(self.table, [ids, keys], column_names=["id", "key"], column_oriented=True)
                done += len(keys)
            self.store.put_setting(connection, self.setting, str(done))
        return done


def table_statements(table: str, cluster: str | None) -> list[str]:
    """One MergeTree on one machine; on a cluster one a shard, and a Distributed table over them."""
    # Keys are random, so compressing them only costs time; ids compress to almost nothing.
    columns = "(id UInt64 CODEC(Delta, ZSTD), key UInt64 CODEC(NONE))"
    if not cluster:
        return [f"CREATE TABLE IF NOT EXISTS {table} {columns} ENGINE = MergeTree ORDER BY id"]
    return [
        f"CREATE TABLE IF NOT EXISTS {table}_shard ON CLUSTER {cluster} {columns} ENGINE = MergeTree ORDER BY id",
        f"CREATE TABLE IF NOT EXISTS {table} ON CLUSTER {cluster} AS {table}_shard "
        f"ENGINE = Distributed({cluster}, currentDatabase(), {table}_shard, id)",
    ]


def search_statement(table: str, query: Query, top: int, limit: int) -> str:
    """Filter first, order after. GROUP BY makes a key that was copied twice count once."""
    terms = []
    for b, plane in enumerate(query.planes.tolist()):
        masked = f"bitXor(key, toUInt64({query.bits}))"
        if not query.hard:
            masked = f"bitAnd({masked}, toUInt64({plane}))"
        terms.append(f"{1 << b} * bitCount({masked})" if b else f"bitCount({masked})")
    cost = " + ".join(terms)
    return (
        f"SELECT key, {cost} AS cost FROM {table} WHERE cost <= {limit} "
        f"GROUP BY key, cost ORDER BY cost, key LIMIT {top}"
    )
