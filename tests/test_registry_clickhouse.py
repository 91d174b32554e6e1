"""The ClickHouse backend's SQL, run for real by chdb (ClickHouse in this process) on a million keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diffmark.registry import Registry, RegistryError, scan
from diffmark.registry import query as queries
from diffmark.registry.access import Access
from diffmark.registry.clickhouse import ClickHouseSearcher, table_statements
from diffmark.registry.query import Query
from diffmark.registry.store import Store
from diffmark.statistics import soft_weights

chdb_session = pytest.importorskip(
    "chdb.session", reason="ClickHouse's SQL NOT TESTED: chdb is not installed"
)


class Embedded:
    """clickhouse_connect's client as far as it is used, over chdb."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.session = chdb_session.Session(str(folder / "data"))
        self.session.query("CREATE DATABASE registry ENGINE = Atomic")
        self.session.query("USE registry")
        self.statements: list[str] = []

    def command(self, statement: str) -> None:
        self.session.query(statement)

    def query(self, statement: str) -> Any:
        self.statements.append(statement)
        lines = str(self.session.query(statement, "TabSeparated")).splitlines()
        return SimpleNamespace(result_rows=[tuple(map(int, line.split("\t"))) for line in lines if line])

    def insert(self, table: str, data: Any, column_names: list[str], column_oriented: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert column_oriented
        path = self.folder / "block.parquet"
        pq.write_table(pa.table(dict(zip(column_names, data, strict=True))), path)
        self.session.query(f"INSERT INTO {table} SELECT * FROM file('{path}', Parquet)")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("clickhouse"))
    yield embedded
    embedded.session.close()


def opened(store: Store, client: Embedded) -> Registry:
    return Registry(store, ClickHouseSearcher(store, client), Access(store, "ann"))  # type: ignore[arg-type]


def test_a_million_keys_are_searched_exactly(client: Embedded) -> None:
    rng = np.random.default_rng(6)
    keys = rng.integers(0, 2**64, 1_000_000, dtype=np.uint64)
    store = Store("sqlite://")
    with store.write() as connection:
        store.insert(connection, keys, None)
    with opened(store, client) as registry:
        for errors in (0, 5, 11, 20):
            bits = int(keys[77]) ^ sum(1 << int(place) for place in rng.choice(64, errors, replace=False))
            for weights in (np.ones(64, np.int64), soft_weights(rng.standard_normal(64))):
                query = Query(bits, weights)
                for top, within in ((1, None), (10, None), (50, 12)):
                    (hits,), path = registry.searcher.search([query], top, within)
                    expected = scan.scan(keys, [query], top, within)[0]
                    assert path == "clickhouse"
                    assert [part.tolist() for part in hits] == [part.tolist() for part in expected]
        answer = registry.identify_bits(int(keys[123]) ^ 0b101)
        assert answer.verdict.principal == "key-124"
        key = registry.issue("new account")  # issued by the rows, found at once in ClickHouse
        assert registry.identify_bits(int(key)).verdict.principal == "new account"
        assert registry.verify().ok
        with pytest.raises(ValueError, match="path must be clickhouse, got 'scan'"):
            registry.identify_bits(1, path="scan")
        with pytest.raises(ValueError, match="top must be at least 1"):
            registry.identify_bits(1, top=0)


def test_few_keys_and_keys_copied_twice(client: Embedded) -> None:
    """The limit is raised until enough is found; an insert that was repeated after a failure does no harm."""
    keys = np.random.default_rng(7).integers(0, 2**64, 30, dtype=np.uint64)
    store = Store("sqlite://")
    with store.write() as connection:
        store.insert(connection, keys, None)
    with opened(store, client) as registry:
        registry.identify_bits(0)
        with store.write() as connection:
            store.put_setting(connection, registry.searcher.setting, "3")  # type: ignore[attr-defined]
        answer = registry.identify_bits(0, top=30)
        costs, found = scan.scan_blocks([keys], queries.from_bits(0), 30)
        assert [int(c.key, 16) for c in answer.candidates] == found.tolist()
        assert [c.distance for c in answer.candidates] == costs.tolist()
        assert len(client.query(f"SELECT id FROM {registry.searcher.table}").result_rows) == 57  # type: ignore[attr-defined]


def test_filter_comes_before_order(client: Embedded) -> None:
    statement = next(s for s in client.statements if "bitCount" in s)
    assert statement.index("WHERE cost <=") < statement.index("ORDER BY cost, key LIMIT")


def test_a_cluster_has_a_table_a_shard_and_one_over_them(client: Embedded) -> None:
    """chdb has no cluster to run them on, but its parser reads the statements."""
    shard, over = table_statements("keys", "racks")
    for statement in (shard, over):
        parsed = str(client.session.query(f"SELECT formatQuery('{statement}')"))
        assert "ON CLUSTER racks" in parsed
    assert "MergeTree" in shard
    assert "Distributed(racks, currentDatabase(), keys_shard, id)" in over


def test_the_url_names_the_rows(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"\?rows=postgresql"):
        Registry.open("clickhouse://localhost/registry")
    pytest.importorskip("clickhouse_connect")
    rows = f"sqlite%3A%2F%2F%2F{tmp_path}%2Fa.db"
    with pytest.raises(RegistryError, match="cannot be reached or refused"):
        Registry.open(f"clickhouse://someone:word@127.0.0.1:1/registry?rows={rows}&cluster=racks")
