"""Rows: how fast keys are issued, and searched straight from the database without a cache.

    python benchmarks/registry_store.py [--postgres URL]        # a few minutes

Writes results/registry_store.json. Issuing is durable (synchronous=FULL). The clock and this process's CPU time
are given: the clock counts the disk, the database server and whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffmark.provenance import provenance
from diffmark.registry import Registry
from diffmark.registry.scan import kernels

RESULTS = Path(__file__).parents[1] / "results"
MILLION = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database to measure as well")
    postgres = parser.parse_args().postgres
    kernels()  # compiled before anything is measured
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for url in [f"sqlite:///{folder}/registry.db"] + ([postgres] if postgres else []):
            for row in measured(url):
                print(row, flush=True)
                rows.append(row)
    document = {
        **provenance("python benchmarks/registry_store.py", {"postgres": bool(postgres)}),
        "rows": rows,
    }
    (RESULTS / "registry_store.json").write_text(json.dumps(document, indent=1) + "\n")


def measured(url: str) -> Iterator[dict[str, Any]]:
    """Bulk issue into an empty registry and into a full one, single keys, and search from the rows."""
    with Registry.open(url, cache=False) as registry:
        database = registry.store.dialect

        def row(what: str, actions: list[Callable[[], Any]]) -> dict[str, Any]:
            times = []
            for action in actions:
                clock, cpu = time.perf_counter(), time.process_time()
                action()
                times.append((time.perf_counter() - clock, time.process_time() - cpu))
            clock, cpu = np.median(times, axis=0)
            return {"what": what, "database": database, "seconds": float(clock), "cpu_seconds": float(cpu)}

        for there in ("empty registry", "a million there"):
            names = [f"user-{i}" for i in range(MILLION)]
            found = row(f"issue a million keys, {there}", [lambda names=names: registry.issue_many(names)])
            yield found | {
                "keys_a_second": MILLION / found["seconds"],
                "keys_a_cpu_second": MILLION / found["cpu_seconds"],
            }
        yield row("issue one key", [lambda: registry.issue("one more")] * 50)
        with registry.store.read() as connection:
            known = next(iter(registry.store.keys(connection, up_to=20)))
        for errors in (5, 11):
            near = [int(key) ^ (2**errors - 1) << 20 for key in known]
            actions = [lambda bits=bits, e=errors: registry.identify_bits(bits, 1, within=e) for bits in near]
            yield row(f"identify from the rows, no cache, within {errors} errors, two million keys", actions)


if __name__ == "__main__":
    main()
