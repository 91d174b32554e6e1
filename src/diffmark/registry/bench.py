"""How fast a registry of a given size is searched, as ratios to the read-bandwidth limit of the same run.

Medians over several queries, one thread, CPU time: other work on the machine stretches the clock but not these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diffmark.registry import query as queries
from diffmark.registry.experiment import simulate
from diffmark.registry.index import MultiIndex
from diffmark.registry.query import LENGTH, Keys, Query
from diffmark.registry.scan import blocks_of, kernels, scan, scan_blocks

TOP = 10
MAX_ANSWERS = 1 << 14  # answers asked for when every key within a radius is wanted


def measure(action: Callable[[Any], Any], inputs: list[Any]) -> float:
    """Median CPU seconds of action(input); the first input is run once before, unmeasured."""
    action(inputs[0])
    seconds = []
    for value in inputs:
        started = time.process_time_ns()
        action(value)
        seconds.append((time.process_time_ns() - started) / 1e9)
    return float(np.median(seconds))


def random_query(rng: np.random.Generator) -> Query:
    """Bits that belong to no key."""
    return queries.from_bits(int(rng.integers(0, 2**64, dtype=np.uint64)))


def query_near(keys: Keys, errors: int, rng: np.random.Generator) -> Query:
    """A key with `errors` bits wrong."""
    places = rng.choice(LENGTH, errors, replace=False)
    return queries.from_bits(int(keys[rng.integers(len(keys))]) ^ sum(1 << int(place) for place in places))


def soft_query(keys: Keys, ber: float, rng: np.random.Generator) -> Query:
    """A key read by a decoder with a share `ber` of wrong bits."""
    noise = simulate(ber, 1, int(rng.integers(2**32)))
    signs = (2.0 * noise.secrets[0] - 1) * noise.margins[0]
    key = int(keys[rng.integers(len(keys))])
    return queries.from_margins(
        signs * [1 if key >> (LENGTH - 1 - place) & 1 else -1 for place in range(LENGTH)]
    )


def bench(keys: Keys, seed: int = 0, repeats: int = 7, index: bool = True) -> Iterator[dict[str, Any]]:
    """Rows (what, milliseconds a query, times the limit); needs 8 bytes a key, 32 with the index."""
    compiled = kernels()
    if compiled is None:
        raise ImportError("the benchmark needs numba: pip install 'diffmark[registry]'")
    rng = np.random.default_rng(seed)
    read = min(measure(compiled.read_all, [keys] * repeats), measure(np.max, [keys] * repeats))

    def row(what: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {"what": what, "keys": len(keys), "ms": 1e3 * seconds, "times_limit": seconds / read, **more}

    hard = [random_query(rng) for _ in range(repeats)]
    soft = [soft_query(keys, 0.1, rng) for _ in range(repeats)]
    yield row("read all keys (the limit)", read)
    yield row("scan, hard", measure(lambda query: scan(keys, [query], TOP), hard))
    yield row("scan, soft", measure(lambda query: scan(keys, [query], TOP), soft))
    yield row("numpy blocks, hard", measure(lambda query: scan_blocks(blocks_of(keys), query, TOP), hard[:3]))
    batch = [random_query(rng) for _ in range(256)]
    yield row("scan, batch of 256, a query", measure(lambda many: scan(keys, many, TOP), [batch]) / 256)
    batch = [soft_query(keys, 0.1, rng) for _ in range(256)]
    yield row("scan, soft batch of 256, a query", measure(lambda many: scan(keys, many, TOP), [batch]) / 256)
    yield from faiss_rows(keys, hard, row)
    if index:
        yield from index_rows(keys, soft, rng, repeats, row)


def faiss_rows(
    keys: Keys, asked: list[Query], row: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """faiss's exact binary index on the same keys, if it is installed."""
    try:
        import faiss
    except ImportError:
        return
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexBinaryFlat(LENGTH)
    flat.add(keys.view(np.uint8).reshape(-1, 8))
    codes = [np.array([[query.bits]], dtype=np.uint64).view(np.uint8) for query in asked]
    distances = flat.search(codes[0], TOP)[0]
    if distances[0].tolist() != scan(keys, [asked[0]], TOP)[0][0].tolist():
        raise AssertionError("faiss and the scan disagree")
    yield row("faiss IndexBinaryFlat", measure(lambda code: flat.search(code, TOP), codes))


def index_rows(
    keys: Keys, soft: list[Query], rng: np.random.Generator, repeats: int, row: Callable[..., dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The in-memory index: every key within a radius, the best ten, and its memory."""
    started = time.process_time()
    built = MultiIndex(keys)
    yield row("build index", time.process_time() - started, bytes_a_key=built.bytes / len(keys))
    for errors in (5, 8, 11, 14, 16):
        asked = [query_near(keys, errors, rng) for _ in range(3 * repeats)]

        def every(query: Query, within: int = errors) -> None:
            built.search(query, MAX_ANSWERS, within)

        yield row(f"index, every key within {errors} errors", measure(every, asked))
        yield row(
            f"index, best ten, key at {errors} errors", measure(lambda query: built.search(query, TOP), asked)
        )
    yield row("index, best ten, soft", measure(lambda query: built.search(query, TOP), soft * 3))
