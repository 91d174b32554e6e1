"""The cache of many keys: how long it takes to fill and to open, and its size.

    python benchmarks/registry_cache.py [--keys 1e8]        # some minutes, 8 GB of disk

Writes results/registry_cache.json. The rows are made without the search indexes, which opening does not touch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from diffmark.provenance import provenance
from diffmark.registry import Registry, schema
from diffmark.registry import query as queries
from diffmark.registry.scan import kernels
from diffmark.registry.store import Store

RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=float, default=1e8)
    count = int(parser.parse_args().keys)
    kernels()  # compiled before anything is measured
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measured(Path(folder), count):
            print(row, flush=True)
            rows.append(row)
    document = {**provenance("python benchmarks/registry_cache.py", {"keys": count}), "rows": rows}
    (RESULTS / "registry_cache.json").write_text(json.dumps(document, indent=1) + "\n")


def measured(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    url = f"sqlite:///{folder}/registry.db"
    yield row("make the rows", lambda: make_rows(url, count))
    with Registry.open(url) as registry:
        yield row("fill the cache", lambda: registry.searcher.search([queries.from_bits(0)], 1))
    size = (folder / "registry.db.keys").stat().st_size
    yield {"what": "size", "bytes_a_key": size / count}
    for _ in range(3):
        yield row("open and check", lambda: Registry.open(url).close())
    with Registry.open(url) as registry:
        for _ in range(3):
            yield row("scan what is mapped", lambda: registry.searcher.search([queries.from_bits(0)], 10))


def make_rows(url: str, count: int) -> None:
    """Random keys, drawn inside SQLite."""
    store = Store(url)
    with store.write() as connection:
        for name in schema.key_indexes("sqlite"):
            connection.exec_driver_sql(f"DROP INDEX {name}")
        connection.exec_driver_sql(
            f"WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count}) "
            "INSERT INTO keys (id, key, principal, created) SELECT i, random(), 'somebody', 0 FROM numbers"
        )
    store.close()


def row(what: str, action: Callable[[], Any]) -> dict[str, Any]:
    clock, cpu = time.perf_counter(), time.process_time()
    action()
    return {"what": what, "seconds": time.perf_counter() - clock, "cpu_seconds": time.process_time() - cpu}


if __name__ == "__main__":
    main()
