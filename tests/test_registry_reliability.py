"""What is acknowledged stays: kill -9, damaged caches, full disks, read-only files, databases that go away."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from processes import start
from sqlalchemy import text

from diffmark.registry import Registry, RegistryError, allocation, cache, store
from diffmark.registry.cache import HEADER
from diffmark.registry.store import Store

pytest_plugins = ("postgres",)
BLOCK = 1000  # keys under one checksum, in these tests

# Forks a child for each line it is told: imports are paid once, and the child can be killed at any moment.
FORKER = """
import os, sys
from diffmark.registry import Registry, cache, store
store.READ_BLOCK = 500  # many small appends to the cache: a kill falls between or into them

def issue(url):
    with Registry.open(url) as registry:
        for number in range(10**6):
            keys = registry.issue_many([f"u{number}"] * (1 if number % 3 else 9))
            os.write(1, "".join(f"{key.hex} {key.id}\\n" for key in keys).encode())
            registry.identify_bits(int(keys[0]))  # brings the cache up to date, in a hurry

def write_cache(url):
    append = cache.KeyCache._append
    def say_and_append(self, file, block):
        os.write(1, b"appending\\n")
        append(self, file, block)
    cache.KeyCache._append = say_and_append
    for number in range(10**6):
        with Registry.open(url) as registry, registry.store.read() as connection:
            registry.searcher.cache.refresh(connection)
            os.unlink(registry.searcher.cache.path)

for line in sys.stdin:
    name, url = line.split()
    child = os.fork()
    if child == 0:
        {"issue": issue, "cache": write_cache}[name](url)
        os._exit(0)
    os.write(1, f"child {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"dead\\n")
"""


@contextmanager
def forker() -> Iterator[Callable[[str, str, int], list[str]]]:
    """Gives a function that runs a child, kills it after it wrote some lines, and returns all it wrote."""
    process = start(FORKER)
    assert process.stdin is not None
    assert process.stdout is not None

    chance = random.Random(1)

    def run(name: str, url: str, most: int) -> list[str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name} {url}\n")
        process.stdin.flush()
        lines: list[str] = []
        wanted = chance.randint(2, most)
        while len(lines) < wanted or not any(line.startswith("child") for line in lines):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr and process.stderr.read()
        time.sleep(chance.uniform(0, 0.03))
        os.kill(next(int(line.split()[1]) for line in lines if line.startswith("child")), signal.SIGKILL)
        while (line := process.stdout.readline()) and not line.endswith("dead\n"):
            lines.append(line)
        return lines

    yield run
    process.stdin.close()
    process.stdout.close()
    if process.stderr:
        process.stderr.close()
    process.wait()


def rows(registry: Registry) -> np.ndarray:
    with registry.store.read() as connection:
        return np.concatenate([np.empty(0, np.uint64), *registry.store.keys(connection)])


def cached(registry: Registry) -> np.ndarray:
    assert registry.searcher.cache is not None
    with registry.store.read() as connection:
        registry.searcher.cache.refresh(connection)
    return registry.searcher.cache.keys


def kill_while_issuing(url: str, times: int) -> None:
    acknowledged: dict[int, str] = {}
    with forker() as run:
        for _ in range(times):
            for line in run("issue", url, 20):
                if line.endswith("\n") and len(line.split()) == 2 and len(line.split()[0]) == 16:
                    acknowledged[int(line.split()[1])] = line.split()[0]
            with Registry.open(url) as registry:
                stored = rows(registry)
                assert all(f"{stored[i - 1]:016x}" == key for i, key in acknowledged.items())
                assert np.array_equal(cached(registry), stored)
    with Registry.open(url) as registry:
        assert registry.verify().ok
        assert len(set(rows(registry).tolist())) == len(registry) >= len(acknowledged)
    assert len(acknowledged) > times


def kill_while_writing_the_cache(url: str, times: int) -> None:
    with Registry.open(url, cache=False) as registry:
        registry.import_keys(np.random.default_rng(1).integers(0, 2**64, 20_000, dtype=np.uint64))
        expected = rows(registry)
    unfinished = 0
    with forker() as run:
        for _ in range(times):
            run("cache", url, 40)  # one filling appends forty times
            path = Path(url.removeprefix("sqlite:///") + ".keys")
            unfinished += path.exists() and path.stat().st_size < HEADER + 8 * len(expected)
            with Registry.open(url) as registry:
                assert np.array_equal(cached(registry), expected)
            path.unlink()
    assert unfinished  # some kills fell into the middle of writing


def test_kill_9_while_issuing_loses_nothing(url: str) -> None:
    kill_while_issuing(url, 10)


def test_kill_9_while_writing_the_cache_is_healed(tmp_path: Path) -> None:
    kill_while_writing_the_cache(f"sqlite:///{tmp_path / 'registry.db'}", 15)


@pytest.mark.slow
def test_a_hundred_times_kill_9_while_issuing(url: str) -> None:
    kill_while_issuing(url, 100)


@pytest.mark.slow
def test_a_hundred_times_kill_9_while_writing_the_cache(tmp_path: Path) -> None:
    kill_while_writing_the_cache(f"sqlite:///{tmp_path / 'registry.db'}", 100)


# --- caches ------------------------------------------------------------------------------------------------


@pytest.fixture
def cached_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path, np.ndarray]:
    """A registry of a little more than one block of keys, closed, its cache, and its keys."""
    monkeypatch.setattr(cache, "BLOCK", BLOCK)
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    keys = np.random.default_rng(3).integers(0, 2**64, BLOCK + 100, dtype=np.uint64)
    with Registry.open(url) as registry:
        with registry.store.write() as connection:
            registry.store.insert(connection, keys, None)
        assert np.array_equal(cached(registry), keys)
    return url, tmp_path / "registry.db.keys", keys


def test_damaged_caches_are_healed(cached_registry: tuple[str, Path, np.ndarray]) -> None:
    url, path, keys = cached_registry
    whole = path.read_bytes()

    def heal(content: bytes | None, message: str) -> None:
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        with Registry.open(url) as registry:
            assert np.array_equal(cached(registry), keys)
            assert registry.searcher.cache is not None
            assert message in "; ".join(registry.searcher.cache.healed)
        assert path.read_bytes() == whole

    def with_bytes(place: int, value: bytes) -> bytes:
        return whole[:place] + value + whole[place + len(value) :]

    heal(None, "")
    heal(b"", "")
    heal(b"junk", "damaged or of another registry")
    heal(with_bytes(0, b"X"), "damaged")
    heal(with_bytes(30, b"\xff"), "damaged")
    heal(with_bytes(HEADER + 800, b"\0\0\0\0"), f"keys 1 ... {BLOCK} did not fit")
    heal(with_bytes(HEADER + 8 * BLOCK + 8, b"\0\0\0\0"), f"keys {BLOCK + 1} ... {BLOCK + 100} did not fit")
    heal(whole[: HEADER + 4000], "did not fit")
    heal(whole[: HEADER - 5], "damaged")


def test_a_cache_of_another_registry_is_not_used(
    cached_registry: tuple[str, Path, np.ndarray], tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with Registry.open(other, cache=False) as registry:
        registry.issue("a")
    shutil.copy(cached_registry[1], tmp_path / "other.db.keys")
    with Registry.open(other) as registry:
        assert np.array_equal(cached(registry), rows(registry))


def test_a_cache_longer_than_the_rows_is_shortened(cached_registry: tuple[str, Path, np.ndarray]) -> None:
    url, _, keys = cached_registry
    opened = Store(url)
    with opened.write() as connection:
        connection.execute(text(f"DELETE FROM keys WHERE id > {BLOCK + 10}"))
    opened.close()
    for _ in range(2):
        with Registry.open(url) as registry:
            assert np.array_equal(cached(registry), keys[: BLOCK + 10])


def test_where_no_cache_can_be_written_keys_are_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    url, place = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "folder"
    with pytest.warns(UserWarning, match="cannot be used, keys are held in memory"):
        registry = Registry.open(url, cache=place)
    key = registry.issue("a")
    assert registry.identify_bits(int(key)).verdict.principal == "a"
    registry.close()


def test_deleted_rows_are_reported(cached_registry: tuple[str, Path, np.ndarray]) -> None:
    url, path, _ = cached_registry
    path.unlink()
    opened = Store(url)
    with opened.write() as connection:
        connection.execute(text("DELETE FROM keys WHERE id = 5"))
    opened.close()
    with Registry.open(url) as registry, pytest.raises(RegistryError, match="1 of the keys .* are missing"):
        cached(registry)


# --- disks -------------------------------------------------------------------------------------------------

FILL = """
import resource, signal, sys, warnings
from diffmark.registry import Registry, RegistryError
with Registry.open(sys.argv[1]) as registry:
    if sys.argv[2] != "0":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
    warnings.simplefilter("ignore")
    try:
        for number in range(10**6):
            for key in registry.issue_many([f"u{number}-{i}" for i in range(300)]):
                print(key.hex, key.id)
            registry.identify_bits(int(key))
    except RegistryError as error:
        print("REFUSED", error)
"""


def fill(url: str, limit: int) -> tuple[dict[int, str], str]:
    """Issue until it is refused; the acknowledged keys, and the refusal."""
    output, errors = start(FILL, url, str(limit)).communicate(timeout=120)
    *lines, last = output.splitlines()
    assert last.startswith("REFUSED"), errors
    return {int(line.split()[1]): line.split()[0] for line in lines}, last


def check_nothing_lost(url: str, acknowledged: dict[int, str]) -> None:
    with Registry.open(url) as registry:
        stored = rows(registry)
        assert acknowledged
        assert all(f"{stored[i - 1]:016x}" == key for i, key in acknowledged.items())
        assert registry.verify().ok
        assert registry.issue("after").id == len(stored) + 1
        assert np.array_equal(cached(registry), rows(registry))


def test_a_file_that_may_not_grow_is_a_clear_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    acknowledged, refusal = fill(url, 600_000)
    assert "check the disk" in refusal or "size limit" in refusal or "disk is full" in refusal
    check_nothing_lost(url, acknowledged)


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    """A real full disk where we may mount one; else SQLite's own limit, which gives the same error."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(tmp_path)], capture_output=True
    )
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    if mounted.returncode == 0:
        try:
            acknowledged, refusal = fill(url, 0)
            assert "the disk is full: free some space" in refusal
            shutil.copytree(tmp_path, tmp_path.with_name("rescued"))
        finally:
            subprocess.run(["umount", str(tmp_path)], check=True)
        check_nothing_lost(f"sqlite:///{tmp_path.with_name('rescued') / 'registry.db'}", acknowledged)
        return
    with Registry.open(url) as registry:
        with registry.store.read() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=60")
        keys: dict[int, str] = {}

        def issue_forever() -> None:
            while True:
                key = registry.issue("x" * 200)
                keys[key.id] = key.hex

        with pytest.raises(RegistryError, match="the disk is full: free some space"):
            issue_forever()
    check_nothing_lost(url, keys)


def test_a_read_only_registry_gives_no_answers_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(f"sqlite:///{path}") as registry:
        key = registry.issue("a")
    read_only = f"sqlite:///file:{path}?mode=ro&uri=true"
    with Registry.open(read_only, cache=False) as registry:
        assert registry.verify().ok
        with pytest.raises(RegistryError, match="read-only: every call is written"):
            registry.identify_bits(int(key))
        with pytest.raises(RegistryError, match="read-only"):
            registry.issue("b")
    with Registry.open(f"sqlite:///{path}") as registry:
        assert len(registry) == 1


def test_a_read_only_postgresql_says_so(new_postgres: Callable[[], str]) -> None:
    url = new_postgres()
    with Registry.open(url, cache=False) as registry:
        registry.issue("a")
    read_only = f"{url}%20-c%20default_transaction_read_only%3Don"
    with Registry.open(read_only, cache=False) as registry, pytest.raises(RegistryError, match="read-only"):
        registry.issue("b")


# --- databases that go away --------------------------------------------------------------------------------


def test_postgresql_gone_in_the_middle(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registry.open(new_postgres(), cache=False) as registry:
        key = registry.issue("a")

        def cut_off(opened: Store, connection: object, count: int) -> np.ndarray:
            victim = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()  # type: ignore[attr-defined]
            with opened.read() as other:
                other.exec_driver_sql(f"SELECT pg_terminate_backend({victim})")
            return allocation.draw(count)

        with monkeypatch.context() as patch:
            patch.setattr(allocation, "allocate", cut_off)
            with pytest.raises(RegistryError, match="cannot be reached or went away"):
                registry.issue("b")
        assert registry.issue("c").id == 2  # nothing of "b" was kept, and the registry goes on
        assert registry.identify_bits(int(key)).verdict.principal == "a"
        assert registry.verify().ok


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="cannot be reached or went away"):
        Registry.open(f"postgresql://tester@/x?host={tmp_path}")
    (tmp_path / "junk.db").write_bytes(b"this is not a database" * 100)
    (tmp_path / "junk.db").chmod(0o600)
    with pytest.raises(RegistryError, match="damaged or not a registry"):
        Registry.open(f"sqlite:///{tmp_path / 'junk.db'}")
    (tmp_path / "a-folder").mkdir()
    with pytest.raises(RegistryError, match="cannot be opened"):
        Registry.open(f"sqlite:///{tmp_path / 'a-folder'}")


def test_a_file_removed_while_open_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry.open(f"sqlite:///{path}") as registry:
        registry.issue("a")
        path.unlink()
        with pytest.raises(RegistryError, match="removed or replaced while it was open"):
            registry.issue("b")


def test_a_writer_that_never_ends_is_not_waited_for_forever(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_TIMEOUT", 0.2)
    with (
        Registry.open(url, cache=False) as registry,
        registry.store.write(),
        Registry.open(url, cache=False) as other,
    ):
        with pytest.raises(RegistryError, match="held the write lock too long"):
            other.issue("a")
        assert len(other) == 0  # reading goes on meanwhile
