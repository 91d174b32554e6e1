"""Rows: how fast keys are issued, searched without a cache, and how fast the cache of many keys opens.

    python benchmarks/registry_store.py [--keys 1e8] [--postgres URL]    # about ten minutes, 8 GB of disk

Writes results/registry_store.json. Seconds by the clock; issuing is durable (synchronous=FULL).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffmark.provenance import provenance
from diffmark.registry import Registry, schema
from diffmark.registry import query as queries
from diffmark.registry.scan import kernels
from diffmark.registry.store import Store

RESULTS = Path(__file__).parents[1] / "results"
MILLION = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=float, default=1e8, help="keys of the cache that is opened")
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database to measure as well")
    arguments = parser.parse_args()
    kernels()  # compiled before anything is measured
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"sqlite:///{folder}/registry.db"] + ([arguments.postgres] if arguments.postgres else [])
        for url in urls:
            rows += shown(issuing(url))
        rows += shown(opening(Path(folder), int(arguments.keys)))
    config = {"keys": int(arguments.keys), "postgres": bool(arguments.postgres)}
    document = {**provenance("python benchmarks/registry_store.py", config), "rows": rows}
    (RESULTS / "registry_store.json").write_text(json.dumps(document, indent=1) + "\n")


def shown(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        print(row, flush=True)
        yield row


def issuing(url: str) -> Iterator[dict[str, Any]]:
    """Bulk issue into an empty registry and into a full one, single keys, and search straight from the rows."""
    with Registry.open(url, cache=False) as registry:
        kind = registry.store.dialect
        for title in ("issue a million keys, empty registry", "issue a million keys, a million there"):
            names = [f"user-{i}" for i in range(MILLION)]
            clock, cpu = time.perf_counter(), time.process_time()
            registry.issue_many(names)
            clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
            yield {
                "what": title,
                "database": kind,
                "seconds": clock,
                "cpu_seconds": cpu,
                "keys_a_second": MILLION / clock,
            }
        times = [timed(lambda: registry.issue("one more"))[0] for _ in range(50)]
        yield {"what": "issue one key, durable", "database": kind, "median_ms": 1e3 * float(np.median(times))}
        with registry.store.read() as connection:
            known = next(iter(registry.store.keys(connection, up_to=50)))
        for errors in (5, 11):
            near = [int(key) ^ (2**errors - 1) << 20 for key in known[:20]]
            times = [
                timed(lambda bits=bits, within=errors: registry.identify_bits(bits, 1, within=within))[0]
                for bits in near
            ]
            what = f"identify from rows, no cache, within {errors} errors, two million keys, audit entry included"
            yield {"what": what, "database": kind, "median_ms": 1e3 * float(np.median(times))}


def opening(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """The cache of many keys. The rows are loaded without the search indexes, which opening does not touch."""
    url = f"sqlite:///{folder}/large.db"
    store = Store(url)
    with store.write() as connection:
        for name in schema.key_indexes("sqlite"):
            connection.exec_driver_sql(f"DROP INDEX {name}")
        seconds, _ = timed(
            lambda: connection.exec_driver_sql(
                f"WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count}) "
                "INSERT INTO keys (id, key, principal, created) SELECT i, random(), 'somebody', 0 FROM numbers"
            )
        )
    store.close()
    yield {"what": f"make {count} rows inside SQLite, without indexes", "seconds": seconds}
    with Registry.open(url) as registry:
        seconds, _ = timed(lambda: registry.searcher.search([queries.from_bits(0)], 1))
        yield {"what": f"fill the cache from {count} rows", "seconds": seconds}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(3):
        seconds, registry = timed(lambda: Registry.open(url))
        yield {"what": f"open the cache of {count} keys, time {number + 1}", "seconds": seconds}
        if number == 0:
            size = os.path.getsize(f"{folder}/large.db.keys")
            yield {
                "what": "bytes a key in the cache, which is mapped",
                "bytes_a_key": size / count,
                "rss_before_kb": before,
            }
        seconds, _ = timed(lambda registry=registry: registry.searcher.search([queries.from_bits(0)], 10))
        yield {"what": f"scan the mapped cache of {count} keys", "seconds": seconds}
        registry.close()


def timed(action: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
