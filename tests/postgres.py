"""A throw-away PostgreSQL for tests: installed if it is missing and we may, run unprivileged on a socket.

Where it cannot be had, tests that need it fail in CI and are skipped, with the reason, elsewhere.
"""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import debian
import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """The folder with the socket of a running server."""
    programs = find_programs() or install()
    if isinstance(programs, str):
        if os.environ.get("CI") == "true":
            pytest.fail(f"PostgreSQL is needed for these tests: {programs}")
        pytest.skip(f"NOT TESTED on PostgreSQL: {programs}")
    folder = Path(tempfile.mkdtemp(prefix="diffmark-postgres-"))
    unprivileged = []
    if os.geteuid() == 0:  # the server refuses to run as root
        user = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        unprivileged = ["runuser", "-u", user, "--"]

    def run(*command: str) -> None:
        done = subprocess.run(
            [*unprivileged, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stdout}"

    data = str(folder / "data")
    run(str(programs / "initdb"), "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8")
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off -c max_connections=50"
    run(str(programs / "pg_ctl"), "-D", data, "-w", "-o", options, "-l", str(folder / "log"), "start")
    yield folder
    run(str(programs / "pg_ctl"), "-D", data, "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture
def new_postgres(postgres_server: Path) -> Callable[[], str]:
    """Makes empty schemas (faster than databases, and as empty); returns their URLs."""
    import psycopg

    def make() -> str:
        name = f"test{next(_numbers)}"
        with psycopg.connect(host=str(postgres_server), user="tester", dbname="postgres") as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"postgresql://tester@/postgres?host={postgres_server}&options=-c%20search_path%3D{name}"

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of each kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'registry.db'}"
    return request.getfixturevalue("new_postgres")()


def find_programs() -> Path | None:
    """The folder with initdb and pg_ctl."""
    found = [*glob.glob("/usr/lib/postgresql/*/bin/initdb"), shutil.which("initdb") or ""]
    return next((Path(name).parent for name in sorted(found, reverse=True) if name), None)


def install() -> Path | str:
    """Install Debian's package; the folder of its programs, or why there is none."""
    failure = debian.install("postgresql")
    return failure or find_programs() or "apt-get installed it, but initdb is not where Debian puts it"
