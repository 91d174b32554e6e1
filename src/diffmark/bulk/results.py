"""The rows of a bulk run: a folder of Parquet files that any reader opens as one table. What is in it stays.

A file appears whole or not at all, so that a bulk run can be killed at any moment and started again.
"""

from __future__ import annotations

import io
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diffmark.bulk.worker import digests
from diffmark.private import open_private

ROWS, SECONDS = 10_000, 10.0  # a file is written after so many rows or seconds
HEAD = "_bulk.json"  # names with an underscore are passed over by readers of Parquet folders


class Results:
    """The folder at a path or URL."""

    def __init__(self, place: str, config: dict[str, Any]) -> None:
        self.place = place
        self.system, self.path = fsspec.core.url_to_fs(place)
        self.local = isinstance(self.system, fsspec.get_filesystem_class("file"))
        self._waiting: list[pa.Table] = []
        self._written = time.monotonic()
        self._claim(config)

    def done(self) -> np.ndarray:
        """Digests of the rows that are there; those that could not be fetched are tried again."""
        pairs: list[tuple[str, str | None]] = []
        for name in self.files():
            with self.system.open(name, "rb") as file:
                table = pq.read_table(file, columns=["source", "sha256"])
            columns = (table["source"].to_pylist(), table["sha256"].to_pylist())
            pairs += [(source, sha) for source, sha in zip(*columns, strict=True) if sha is not None]
        return digests(pairs)

    def files(self) -> list[str]:
        """The Parquet files."""
        return sorted(name for name in self._names() if name.endswith(".parquet"))

    def _names(self) -> list[str]:
        """What the folder holds now; an object store has no empty folders."""
        self.system.invalidate_cache(self.path)
        try:
            return self.system.ls(self.path, detail=False)
        except FileNotFoundError:
            return []

    def add(self, table: pa.Table) -> None:
        """Rows to be written soon."""
        self._waiting.append(table)
        waited = time.monotonic() - self._written
        if waited > SECONDS or sum(map(len, self._waiting)) >= ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting; it is durable when this returns."""
        table = pa.concat_tables(self._waiting) if self._waiting else None
        self._waiting, self._written = [], time.monotonic()
        if table is None or not len(table):
            return
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        self._put(f"part-{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.parquet", buffer.getvalue())

    def _put(self, name: str, data: bytes) -> None:
        """An object store shows an object when it is whole; in a folder a rename does that."""
        if not self.local:
            self.system.pipe_file(f"{self.path}/{name}", data)
            return
        partial = os.path.join(self.path, f"_{name}.partial")
        with open_private(Path(partial), "wb") as file:  # rows hold bits and accounts
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, os.path.join(self.path, name))

    def _claim(self, config: dict[str, Any]) -> None:
        """Make the folder, or make sure that it holds a bulk run with the same settings."""
        if self.system.isfile(self.path):
            raise FileExistsError(f"{self.place} is a file: the rows go into a folder of Parquet files")
        self.system.makedirs(self.path, exist_ok=True)
        head = f"{self.path}/{HEAD}"
        if self.system.exists(head):
            before = json.loads(self.system.cat_file(head))
            if before != config:
                changed = sorted(name for name in {*before, *config} if before.get(name) != config.get(name))
                raise ValueError(
                    f"{self.place} holds a bulk run with another {', '.join(changed)}: choose another --out"
                )
        elif self._names():
            raise FileExistsError(f"{self.place} is not empty and holds no bulk run: choose another --out")
        else:
            self._put(HEAD, json.dumps(config).encode())
        if self.local:
            for name in os.listdir(self.path):
                if name.endswith(".partial"):
                    os.unlink(os.path.join(self.path, name))


def count_rows(place: str) -> int:
    """Rows in the folder of a bulk run."""
    system, path = fsspec.core.url_to_fs(place)
    total = 0
    for name in system.ls(path, detail=False):
        if name.endswith(".parquet"):
            with system.open(name, "rb") as file:
                total += pq.read_metadata(file).num_rows
    return total
