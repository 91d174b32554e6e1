"""Where the images of a bulk run are: folders, globs, WebDataset tars and Parquet files, anywhere fsspec reaches.

The input is cut into shards, each read by one task: some files, one tar, or one row group.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from diffmark.images import EXTENSIONS

FILES = 16  # a shard of files; they are fetched at the same time
MAX_IMAGE_BYTES = 100_000_000  # bytes of an image
TARS = (".tar", ".tar.gz", ".tgz")
ADDRESSES = ("url", "uri", "path", "file", "image_url")  # columns of addresses that are found by name


@dataclass(frozen=True)
class Item:
    """One image's bytes, or why there are none."""

    source: str  # unique: a file, tar::member, or parquet#row
    data: bytes | None
    url: str | None = None  # where a row of a Parquet file pointed to
    error: str | None = None


@dataclass(frozen=True)
class Shard:
    """What one task reads."""

    kind: Literal["files", "tar", "rows"]
    names: tuple[str, ...]
    column: str = ""
    group: int = 0  # of rows
    first: int = 0  # row of the file


def find(place: str, column: str | None = None, out: str | None = None) -> tuple[list[Shard], int | None]:
    """The shards of a file, folder or glob, and how many images that is, if it can be told without reading all.

    What lies in the folder `out` is passed over: rows of a bulk run are not its input.
    """
    system, path = fsspec.core.url_to_fs(place)
    system.invalidate_cache()  # what an earlier bulk run of this process has listed may have changed
    if system.isdir(path):
        names = sorted(
            name for name in system.find(path) if _suffix(name) in EXTENSIONS or _is_container(name)
        )
    elif any(sign in path for sign in "*?["):
        names = sorted(name for name in system.glob(path) if not system.isdir(name))
    elif system.exists(path):
        names = [path]
    else:
        raise FileNotFoundError(f"{place}: no such file or folder")
    if out is not None:
        own, rows = fsspec.core.url_to_fs(out)
        names = [name for name in names if own != system or not name.startswith(rows.rstrip("/") + "/")]
    if not names:
        raise FileNotFoundError(f"{place}: holds no images, tars or Parquet files")
    whole = [
        name if system.protocol in ("file", ("file", "local")) else system.unstrip_protocol(name)
        for name in names
    ]
    files = [name for name in whole if not _is_container(name)]
    shards = [Shard("files", tuple(files[i : i + FILES])) for i in range(0, len(files), FILES)]
    total: int | None = len(files)
    for name in whole:
        if name.lower().endswith(TARS):
            shards.append(Shard("tar", (name,)))
            total = None
        elif _suffix(name) == ".parquet":
            groups, rows = _row_groups(name, column)
            shards += groups
            total = None if total is None else total + rows
    return shards, total


def read(shard: Shard) -> Iterator[Item]:
    """The items of a shard; what cannot be read is an item with an error."""
    if shard.kind == "files":
        yield from _fetched([(name, name) for name in shard.names])
    elif shard.kind == "tar":
        yield from _tar(shard.names[0])
    else:
        yield from _rows(shard)


def _fetched(places: Sequence[tuple[str, str]], rows: bool = False) -> Iterator[Item]:
    """Items of (source, address), fetched at the same time, in order."""
    with ThreadPoolExecutor(FILES) as pool:
        contents = pool.map(_fetch, [address for _, address in places])
        for (source, address), (data, error) in zip(places, contents, strict=True):
            yield Item(source, data, address if rows else None, error)


def _fetch(address: str) -> tuple[bytes | None, str | None]:
    try:
        with fsspec.open(address, "rb") as file:
            data = file.read(MAX_IMAGE_BYTES + 1)
    except Exception as error:  # each file system has its own kinds
        return None, f"cannot be fetched: {type(error).__name__}: {error}"
    return (None, _too_large()) if len(data) > MAX_IMAGE_BYTES else (data, None)


def _tar(name: str) -> Iterator[Item]:
    try:
        with fsspec.open(name, "rb") as file, tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                if not member.isfile() or _suffix(member.name) not in EXTENSIONS:
                    continue
                source = f"{name}::{member.name}"
                if member.size > MAX_IMAGE_BYTES:
                    yield Item(source, None, error=_too_large())
                    continue
                content = tar.extractfile(member)
                assert content is not None
                yield Item(source, content.read())
    except (tarfile.TarError, OSError, EOFError) as error:
        yield Item(name, None, error=f"damaged or truncated tar, the rest of it was not read: {error}")


def _row_groups(name: str, column: str | None) -> tuple[list[Shard], int]:
    with fsspec.open(name, "rb") as file:
        try:
            parquet = pq.ParquetFile(file)
        except pa.ArrowException as error:
            raise ValueError(f"{name}: not a Parquet file: {error}") from error
        chosen = _column(name, parquet.schema_arrow, column)
        shards, first = [], 0
        for group in range(parquet.num_row_groups):
            shards.append(Shard("rows", (name,), chosen, group, first))
            first += parquet.metadata.row_group(group).num_rows
    return shards, first


def _column(name: str, schema: pa.Schema, column: str | None) -> str:
    """The column with the images, as bytes or as addresses."""
    if column is not None:
        if column not in schema.names:
            raise ValueError(f"{name}: has no column {column!r}, only {', '.join(schema.names)}")
        return column
    for field in schema:
        if _holds_bytes(field.type):
            return field.name
    for field in schema:
        if field.name.lower() in ADDRESSES:
            return field.name
    raise ValueError(f"{name}: say with --column which of {', '.join(schema.names)} holds bytes or URLs")


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):  # {bytes, path}, as datasets of Hugging Face have it
        return kind.get_field_index("bytes") >= 0
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _rows(shard: Shard) -> Iterator[Item]:
    name, number = shard.names[0], shard.first
    try:
        with fsspec.open(name, "rb") as file:
            batches = pq.ParquetFile(file).iter_batches(
                FILES, row_groups=[shard.group], columns=[shard.column]
            )
            for batch in batches:
                values = batch.column(0).to_pylist()
                yield from _values([(f"{name}#{number + i}", value) for i, value in enumerate(values)])
                number += len(values)
    except (pa.ArrowException, OSError) as error:
        yield Item(
            f"{name}#{number}",
            None,
            error=f"damaged Parquet, the rest of its row group was not read: {error}",
        )


def _values(values: Sequence[tuple[str, Any]]) -> Iterator[Item]:
    """Items of the cells of a column: bytes, {bytes, path}, addresses or nothing."""
    cells = [(source, cell["bytes"] if isinstance(cell, dict) else cell) for source, cell in values]
    fetched = _fetched([(source, cell) for source, cell in cells if isinstance(cell, str)], rows=True)
    for source, cell in cells:
        if isinstance(cell, str):
            yield next(fetched)
        elif cell is None:
            yield Item(source, None, error="the cell is empty")
        else:
            yield Item(
                source,
                cell if len(cell) <= MAX_IMAGE_BYTES else None,
                error=_too_large() if len(cell) > MAX_IMAGE_BYTES else None,
            )


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _is_container(name: str) -> bool:
    return _suffix(name) == ".parquet" or name.lower().endswith(TARS)


def _too_large() -> str:
    return f"larger than {MAX_IMAGE_BYTES:,} bytes"
