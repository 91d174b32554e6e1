"""Rows: issuing, importing, revoking, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from processes import start
from sqlalchemy import text

from diffmark.registry import Registry, RegistryError, allocation, schema
from diffmark.registry import query as queries
from diffmark.registry.exchange import export_keys, import_file
from diffmark.registry.index import WIDTHS
from diffmark.registry.store import Store

pytest_plugins = ("postgres",)
RNG = np.random.default_rng(5)


def random_keys(count: int) -> np.ndarray:
    return RNG.integers(0, 2**64, count, dtype=np.uint64)


def stored(registry: Registry) -> np.ndarray:
    with registry.store.read() as connection:
        blocks = list(registry.store.keys(connection))
    return np.concatenate(blocks) if blocks else np.empty(0, np.uint64)


def smallest_distance(keys: np.ndarray) -> int:
    return min(int(queries.popcounts(keys[i + 1 :] ^ keys[i]).min()) for i in range(len(keys) - 1))


def test_an_issued_key_is_stored_and_comes_back(url: str) -> None:
    with Registry.open(url) as registry:
        key = registry.issue("user-42", context={"model": "sd", "endpoint": "v1"}, expires=2**55)
        assert key.id == 1
        assert len(key.secret) == 64
        assert int(key) == int(str(key), 16)
    with Registry.open(url) as registry:
        (again,) = registry.list_keys(principal="user-42")
        assert (again.hex, again.principal, again.status) == (key.hex, "user-42", "live")
        assert json.loads(again.context or "") == {"model": "sd", "endpoint": "v1"}
        assert again.expires == 2**55
        assert again.created == key.created
        assert registry.list_keys(principal="nobody") == []


@pytest.mark.parametrize("count", [20, 3000])
def test_issued_keys_are_eight_bits_apart(url: str, count: int) -> None:
    with Registry.open(url) as registry:
        registry.issue_many([f"a{i}" for i in range(count)])
        keys = registry.issue_many([f"b{i}" for i in range(count)])
        assert [key.id for key in keys] == list(range(count + 1, 2 * count + 1))
        assert smallest_distance(stored(registry)) >= allocation.MIN_DISTANCE
        assert [int(key) for key in keys] == stored(registry)[count:].tolist()


@pytest.mark.parametrize("count", [10, 100])
def test_draws_too_near_to_a_key_are_repeated(url: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of checking (the database's index for a few, all keys in memory for many) see every distance."""
    with Registry.open(url) as registry:
        issued = random_keys(500)
        registry.import_keys(issued)
        registry.revoke(principal="key-7")  # also revoked keys keep their distance: their images still exist
        near = random_keys(count)
        for place, distance in enumerate((0, 1, 7)):
            flips = RNG.choice(64, distance, replace=False)
            near[place] = issued[6] ^ np.bitwise_xor.reduce(
                np.uint64(1) << flips.astype(np.uint64), initial=0
            )
        near[3] = near[4] ^ np.uint64(0b1111111)  # two new keys near to each other
        near[5] = issued[9] ^ np.uint64(0xFF << 30)  # eight bits away: far enough
        with registry.store.read() as connection:
            marked = allocation.too_near(registry.store, connection, near)
        assert marked[:3].all()
        assert marked[3] or marked[4]
        assert not marked[5:].any()
        draws = iter([near.copy(), *(random_keys(1) for _ in range(0)), random_keys(5)[: marked.sum()]])
        monkeypatch.setattr(allocation, "draw", lambda n: next(draws))
        registry.issue_many([f"u{i}" for i in range(count)])
        assert smallest_distance(stored(registry)[500:]) >= allocation.MIN_DISTANCE


def test_a_broken_random_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Registry.open("sqlite://") as registry:
        monkeypatch.setattr(allocation, "draw", lambda count: np.zeros(count, np.uint64))
        registry.issue("first")
        with pytest.raises(RegistryError, match="random source"):
            registry.issue("second")
        assert len(registry) == 1


def test_nearness_is_found_without_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "kernels", lambda: None)
    with Registry.open("sqlite://") as registry:
        registry.issue_many([f"u{i}" for i in range(40)])
        keys = stored(registry)
        near = np.concatenate([keys[:1] ^ np.uint64(3), random_keys(40)])
        with registry.store.read() as connection:
            assert allocation.too_near(registry.store, connection, near).tolist() == [True] + [False] * 40


def test_import_takes_everything_or_nothing(url: str) -> None:
    with Registry.open(url) as registry:
        keys = random_keys(20_000)  # large enough to rebuild the indexes after loading
        assert registry.import_keys(keys) == range(1, 20_001)
        assert registry.import_keys(random_keys(5), ["a", "b", "c", "d", "e"]) == range(20_001, 20_006)
        assert registry.list_keys(principal="key-3")[0].hex == f"{keys[2]:016x}"
        with pytest.raises(RegistryError, match="issued before"):
            registry.import_keys(np.concatenate([random_keys(3), keys[:1]]))
        with pytest.raises(RegistryError, match="issued before"):
            registry.import_keys(np.concatenate([random_keys(30_000), keys[:1]]))
        assert len(registry) == 20_005
        assert registry.identify_bits(int(keys[19_000])).candidates[0].principal == "key-19001"


def test_import_checks_what_it_is_given() -> None:
    with Registry.open("sqlite://") as registry:
        with pytest.raises(ValueError, match="uint64 array of shape"):
            registry.import_keys([1, 2, 3])
        with pytest.raises(ValueError, match="uint64 array of shape"):
            registry.import_keys(np.empty(0, np.uint64))
        with pytest.raises(ValueError, match="principals must have one entry a key: 2, got 1"):
            registry.import_keys(random_keys(2), ["a"])
        with pytest.raises(ValueError, match=r"columns may be .* got \['colour'\]"):
            registry.import_keys(random_keys(1), columns={"colour": ["red"]})


@pytest.mark.parametrize("principal", ["", "a\nb", "x" * 201, 7])
def test_principals_are_short_and_printable(principal: str) -> None:
    with Registry.open("sqlite://") as registry, pytest.raises(ValueError, match="1 to 200 printable"):
        registry.issue(principal)


def test_principals_are_pseudonyms() -> None:
    with Registry.open("sqlite://") as registry:
        with pytest.raises(ValueError, match="looks like an address"):
            registry.issue("ann@example.org")
        with pytest.raises(ValueError, match="at least one"):
            registry.issue_many([])


def test_revoked_and_expired_keys_are_still_identified(url: str) -> None:
    with Registry.open(url) as registry:
        keys = registry.issue_many(["a", "a", "b", "c"])
        assert registry.revoke(principal="a") == 2
        assert registry.revoke(key=keys[2].hex) == 1
        assert registry.expire(1, key=keys[3].hex) == 1
        assert [key.status for key in registry.list_keys()] == ["revoked", "revoked", "revoked", "expired"]
        answer = registry.identify_bits(int(keys[0]))
        assert answer.verdict.principal == "a"
        assert answer.candidates[0].status == "revoked"
        stats = registry.stats()
        assert (stats["keys"], stats["live"], stats["revoked"], stats["expired"]) == (4, 0, 3, 1)
        with pytest.raises(RegistryError, match="unknown or revoked"):
            registry.revoke(principal="a")
        with pytest.raises(ValueError, match="either key or principal, got both"):
            registry.revoke(key=keys[0].hex, principal="a")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_keys_go_out_and_come_back(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"keys.{kind}"
    with Registry.open("sqlite://") as registry:
        registry.issue_many(["plain", 'comma,quote"', "später"], context={"model": "sd"}, expires=2**55)
        registry.revoke(principal="plain")
        assert export_keys(registry, path) == 3
        before = registry.list_keys()
    with Registry.open("sqlite://") as registry:
        assert import_file(registry, path) == range(1, 4)
        assert registry.list_keys() == before


def test_bad_files_are_refused(tmp_path: Path) -> None:
    def refused(name: str, content: str, message: str) -> None:
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            import_file(registry, tmp_path / name)

    with Registry.open("sqlite://") as registry:
        refused("a.txt", "", r"as \.csv or \.parquet, got '\.txt'")
        refused("b.csv", "", "needs a column `key`.*found none")
        refused("c.csv", "key\n12\n", "row 1: a key has 16 hex digits")
        refused("d.csv", "key\n0123456789abcdeg\n", "row 1: a key has 16 hex digits")
        refused("e.csv", "key,principal\n0123456789abcdef\n", "line 2: expected 2 fields, got 1")
        assert len(registry) == 0


WORKER = """
import sys
from diffmark.registry import Registry
with Registry.open(sys.argv[1]) as registry:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        for key in registry.issue_many([f"{sys.argv[2]}-{number}-{i}" for i in range(int(sys.argv[4]))]):
            print(key.hex, key.id, flush=True)
"""


@pytest.mark.parametrize(("calls", "count"), [(15, 1), (2, 200)])
def test_processes_that_issue_at_once_never_give_the_same_key(url: str, calls: int, count: int) -> None:
    Registry.open(url).close()
    workers = [start(WORKER, url, name, str(calls), str(count)) for name in ("left", "right", "middle")]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    lines = [line.split() for worker in workers for line in worker.communicate("go\n")[0].splitlines()]
    assert all(worker.returncode == 0 for worker in workers)
    assert len(lines) == 3 * calls * count
    assert len({key for key, _ in lines}) == len(lines)
    assert sorted(int(i) for _, i in lines) == list(range(1, len(lines) + 1))
    with Registry.open(url) as registry:
        keys = stored(registry)
        assert [f"{keys[int(i) - 1]:016x}" for _, i in lines] == [key for key, _ in lines]
        assert smallest_distance(keys) >= allocation.MIN_DISTANCE
        assert registry.verify().ok


def test_the_part_indexes_are_used(url: str) -> None:
    """The search from rows is fast only if the database takes the expression index for each part."""
    store = Store(url)
    with store.write() as connection:
        store.insert(connection, random_keys(30_000), None)
    if store.dialect == "postgresql":
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE keys"))
    with store.read() as connection:
        for part in range(len(WIDTHS)):
            statement = f"SELECT key FROM keys WHERE {schema.part_expression(part)} IN (1, 2, 3)"
            prefix = "EXPLAIN " if store.dialect == "postgresql" else "EXPLAIN QUERY PLAN "
            plan = str(connection.execute(text(prefix + statement)).all())
            assert f"keys_part_{part}" in plan
    store.close()


def test_migrations_are_named_and_a_newer_registry_is_refused(url: str) -> None:
    store = Store(url)
    with store.write() as connection:
        names = set(connection.scalars(text("SELECT name FROM migrations")))
        assert names == {step.__name__ for step in schema.MIGRATIONS}
        connection.execute(schema.migrations.insert().values(name="from_the_future", time=0))
    store.close()
    with pytest.raises(RegistryError, match=r"from_the_future.*newer"):
        Store(url)


def test_missing_steps_are_applied_on_opening(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        store = Store(url)
        with store.write() as connection:
            store.insert(connection, random_keys(3), ["a", "b", "c"])
        store.close()
    with Registry.open(url) as registry:
        assert len(registry) == 3
        assert registry.issue("d").id == 4


@pytest.mark.parametrize("wrong", ["nonsense", "mysql://localhost/x", "sqlite"])
def test_wrong_urls_say_what_is_right(wrong: str) -> None:
    with pytest.raises(RegistryError, match="use sqlite:///path"):
        Registry.open(wrong)


def test_times_grow_and_ids_are_contiguous(url: str) -> None:
    with Registry.open(url) as registry:
        first = registry.issue("a")
        time.sleep(0.002)
        second = registry.issue("a")
        assert second.created > first.created
        assert [key.id for key in registry.list_keys(after=1)] == [2]
