"""ClickHouse's search speed in bytes a second and core, measured through chdb, and what a cluster would need.

    python benchmarks/registry_clickhouse.py [--keys 1e8]       # about two minutes; needs chdb

Writes results/registry_clickhouse.json. The figures for 1e9 and 1e10 keys are computed from the measured bytes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from chdb import session

from diffmark.provenance import provenance
from diffmark.registry import query as queries
from diffmark.registry.clickhouse import search_statement, table_statements
from diffmark.registry.experiment import simulate

RESULTS = Path(__file__).parents[1] / "results"
SEED = 7
BLOCK = 10_000_000
UNCACHED = " SETTINGS max_threads = 1, use_query_condition_cache = 0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=float, default=1e8)
    count = int(parser.parse_args().keys)
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(count, session.Session(folder))
    document = {
        **provenance("python benchmarks/registry_clickhouse.py", {"keys": count, "seed": SEED, "threads": 1}),
        "rows": rows,
        "computed": [needed(rows, keys, seconds) for keys in (10**9, 10**10) for seconds in (1.0, 0.1)],
    }
    (RESULTS / "registry_clickhouse.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["rows"] + document["computed"], indent=1))


def measured(count: int, chdb: Any) -> list[dict[str, Any]]:
    """Filling, size on disk, and search with one thread."""
    chdb.query("CREATE DATABASE bench ENGINE = Atomic")
    chdb.query("USE bench")
    chdb.query(table_statements("keys", None)[0])
    started = time.perf_counter()
    for first in range(0, count, BLOCK):  # drawn inside ClickHouse: measures its own speed of writing
        size = min(BLOCK, count - first)
        chdb.query(f"INSERT INTO keys SELECT {first} + number + 1, rand64({SEED}) FROM numbers({size})")
    chdb.query("OPTIMIZE TABLE keys FINAL")  # no merges in the background while searches are measured
    rows: list[dict[str, Any]] = [{"what": "insert", "keys": count, "seconds": time.perf_counter() - started}]
    stored = int(
        str(chdb.query("SELECT sum(bytes_on_disk) FROM system.parts WHERE table = 'keys' AND active"))
    )
    rows.append({"what": "on disk", "keys": count, "bytes_a_key": stored / count})
    soft = queries.from_margins(simulate(0.1, 1, SEED).margins[0])
    for what, query, limit in (("hard", queries.from_bits(12345), 12), ("soft", soft, 110)):
        statement = search_statement("keys", query, 10, limit) + UNCACHED
        seconds = []
        for _ in range(5):
            started = time.process_time()
            chdb.query(statement)
            seconds.append(time.process_time() - started)
        middle = float(np.median(seconds))
        rows.append(
            {"what": what, "keys": count, "cpu_seconds": middle, "key_bytes_a_second": 8 * count / middle}
        )
    return rows


def needed(rows: list[dict[str, Any]], keys: int, seconds: float) -> dict[str, Any]:
    """Cores and memory for one query within a time, keys held in the page cache."""
    speed = next(row["key_bytes_a_second"] for row in rows if row["what"] == "soft")
    disk = next(row["bytes_a_key"] for row in rows if row["what"] == "on disk")
    return {
        "keys": keys,
        "seconds_a_soft_query": seconds,
        "cores": 8 * keys / speed / seconds,
        "core_seconds_a_query": 8 * keys / speed,
        "memory_gb": 8 * keys / 1e9,
        "disk_gb": disk * keys / 1e9,
    }


if __name__ == "__main__":
    main()
