"""A bulk run: shards in, rows out, here or on Ray. The driver names accounts and writes; workers decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from diffmark.bulk.results import Results
from diffmark.bulk.sources import Item, Shard, read
from diffmark.bulk.worker import DETECTED, Settings, Worker
from diffmark.statistics import to_logits

if TYPE_CHECKING:
    from diffmark.registry import Registry

BLOCK = 16 << 20  # bytes that go from a reader to a decoder at a time
CANDIDATE = pa.struct(
    [
        ("principal", pa.string()),
        ("status", pa.string()),
        ("distance", pa.int64()),
        ("score", pa.float64()),
        ("p_value", pa.float64()),
        ("family_wise", pa.float64()),
    ]
)
IDENTIFIED = pa.schema(
    [
        *DETECTED,
        ("principal", pa.string()),
        ("family_wise", pa.float64()),
        ("candidates", pa.list_(CANDIDATE)),
    ]
)


def detect_all(
    shards: Sequence[Shard],
    out: str,
    settings: Settings | None = None,
    *,
    registry: Registry | None = None,
    workers: int = 0,
    top: int = 3,
    rate: float = 1e-6,
    reason: str = "",
) -> Iterator[Counter[str]]:
    """Write a row for each image of `sources.find` into the folder `out`; yields counts of verdicts as it goes.

    Images whose rows are there already, with the same content, are passed over. With `workers`, decoders run on
    Ray; with none, in this process. With a registry, candidates are named here at
    a family-wise error of `rate` each, and a batch is an entry of its log.
    """
    settings = settings or Settings()
    config = asdict(settings) | {"registry": registry.store.place if registry else None}
    config["key_ids"] = list(settings.key_ids)  # as JSON gives it back
    results = Results(out, {name: config[name] for name in ("codec", "vae", "fpr", "registry", "key_ids")})
    done = results.done()
    tables = on_ray(shards, settings, done, workers) if workers else in_process(shards, settings, done)
    for table in tables:
        results.add(_identified(table, registry, top, rate, reason) if registry else table)
        yield Counter(verdict or "error" for verdict in table["verdict"].to_pylist())
    results.flush()


def in_process(shards: Sequence[Shard], settings: Settings, done: np.ndarray) -> Iterator[pa.Table]:
    """Tables of rows, decoded here."""
    worker = Worker(settings, done)
    for shard in shards:
        batch: list[Item] = []
        for item in read(shard):
            batch.append(item)
            if len(batch) == settings.batch_size:
                yield worker.rows(batch)
                batch = []
        if batch:
            yield worker.rows(batch)


def on_ray(shards: Sequence[Shard], settings: Settings, done: np.ndarray, workers: int) -> Iterator[pa.Table]:
    """Tables of rows, in no particular order, decoded by `workers` actors of the Ray cluster that is at hand."""
    ray = _ray(workers)
    context = ray.data.DataContext.get_current()
    context.target_max_block_size = BLOCK
    context.enable_progress_bars = False
    items = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=len(shards))
    rows = items.map_batches(
        _read_batch,
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,  # it waits for disks and networks
        compute=ray.data.TaskPoolStrategy(size=workers),
    ).map_batches(
        _RayWorker,
        fn_constructor_args=(settings, done),
        batch_size=4 * settings.batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=1,
        num_gpus=1 if (settings.device or "").startswith("cuda") else None,
    )
    for table in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield table.select(DETECTED.names).cast(DETECTED)


class _RayWorker(Worker):
    """A worker as Ray Data calls it."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        return self.rows([Item(**row) for row in batch.to_pylist()])


def _read_batch(batch: pa.Table) -> Iterator[pa.Table]:
    layout = pa.schema(
        [("source", pa.string()), ("data", pa.large_binary()), ("url", pa.string()), ("error", pa.string())]
    )
    for row in batch.to_pylist():
        for item in read(Shard(**row)):
            yield pa.Table.from_pylist([vars(item)], layout)


def _identified(table: pa.Table, registry: Registry, top: int, rate: float, reason: str) -> pa.Table:
    rows = table.to_pylist()
    decided = [row for row in rows if row["verdict"] is not None]
    logits = [to_logits(row["margins"]) for row in decided]
    for row, answer in zip(
        decided, registry.identify_many(logits, top, rate=rate, reason=reason), strict=True
    ):
        row |= {"principal": answer.verdict.principal, "family_wise": answer.verdict.family_wise}
        names = [field.name for field in CANDIDATE]
        row["candidates"] = [{name: getattr(found, name) for name in names} for found in answer.candidates]
    return pa.Table.from_pylist(rows, IDENTIFIED)


def _ray(workers: int) -> Any:
    """Ray, connected to RAY_ADDRESS, or to a cluster of its own on this machine."""
    import logging
    import os

    for name, level in (("RAY_DATA_LOG_LEVEL", "ERROR"), ("RAY_BACKEND_LOG_LEVEL", "fatal")):
        os.environ.setdefault(name, level)  # what goes wrong is raised here
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            "--workers needs the extra `bulk`: pip install 'diffmark[bulk]'; --workers 0 does without"
        ) from error
    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not os.environ.get("RAY_ADDRESS"):
            quiet |= {"num_cpus": max(workers, os.cpu_count() or 1), "include_dashboard": False}
        ray.init(**quiet)
    return ray
