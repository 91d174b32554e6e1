"""Keys in and out as CSV or Parquet: key (16 hex digits), principal, created, expires, revoked, context."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select

from diffmark.private import open_private
from diffmark.registry import schema
from diffmark.registry.registry import Registry

NAMES = ("key", "principal", "created", "expires", "revoked", "context")
BLOCK = 100_000  # rows at a time


def export_keys(registry: Registry, path: Path, reason: str = "") -> int:
    """Write all keys to a .csv or .parquet file; returns how many. The audit entry comes first."""
    write = _writer(path)
    with registry.access.call("export", reason) as connection:
        registry.access.record(connection, "export", reason, path.name, registry.store.count(connection))
    with registry.store.read() as connection:
        columns = [schema.keys.c[name] for name in NAMES]
        result = connection.execution_options(yield_per=BLOCK).execute(
            select(*columns).order_by(schema.keys.c.id)
        )
        rows = ([f"{row.key % 2**64:016x}", *row[1:]] for row in result)
        return write(path, rows)


def import_file(registry: Registry, path: Path, reason: str = "") -> range:
    """Add the keys of a .csv or .parquet file; only the column `key` is needed. Returns their ids."""
    table = _read_parquet(path) if _kind(path) == "parquet" else _read_csv(path)
    if "key" not in table:
        raise ValueError(
            f"{path}: needs a column `key` with 16 hex digits, found {', '.join(table) or 'none'}"
        )
    keys = np.empty(len(table["key"]), dtype=np.uint64)
    for place, text in enumerate(table["key"]):
        if not isinstance(text, str) or len(text) != 16:
            raise ValueError(f"{path}, row {place + 1}: a key has 16 hex digits")
        try:
            keys[place] = int(text, 16)
        except ValueError:  # its message would show the key
            raise ValueError(f"{path}, row {place + 1}: a key has 16 hex digits") from None
    columns = {name: table[name] for name in NAMES[2:] if name in table}
    if "created" in columns:
        columns["created"] = [value if value is not None else schema.now() for value in columns["created"]]
    return registry.import_keys(keys, table.get("principal"), columns=columns, reason=reason)


def _kind(path: Path) -> str:
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("csv", "parquet"):
        raise ValueError(
            f"{path}: keys are exchanged as .csv or .parquet, got {path.suffix or 'no suffix'!r}"
        )
    return kind


def _writer(path: Path) -> Any:
    return _write_parquet if _kind(path) == "parquet" else _write_csv


def _write_csv(path: Path, rows: Iterator[list[Any]]) -> int:
    count = 0
    with open_private(path, newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        for row in rows:
            writer.writerow(row)
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterator[list[Any]]) -> int:
    import itertools

    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, numbers = pa.string(), pa.int64()
    layout = pa.schema(list(zip(NAMES, (texts, texts, numbers, numbers, numbers, texts), strict=True)))
    count = 0
    with open_private(path, "wb") as file, pq.ParquetWriter(file, layout) as writer:
        while block := list(itertools.islice(rows, BLOCK)):
            columns = dict(zip(NAMES, map(list, zip(*block, strict=True)), strict=True))
            writer.write_table(pa.table(columns, schema=layout))
            count += len(block)
    return count


def _read_csv(path: Path) -> dict[str, list[Any]]:
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        names = next(rows, [])
        table: dict[str, list[Any]] = {name: [] for name in names}
        for row in rows:
            if len(row) != len(names):
                raise ValueError(
                    f"{path}, line {rows.line_num}: expected {len(names)} fields, got {len(row)}"
                )
            for name, value in zip(names, row, strict=True):
                table[name].append(value)
    for name in ("created", "expires", "revoked"):
        if name in table:
            table[name] = [int(value) if value else None for value in table[name]]
    if "context" in table:
        table["context"] = [value or None for value in table["context"]]
    return table


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    return dict(pq.read_table(path).to_pydict())
