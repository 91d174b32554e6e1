"""The keys as one memory-mapped array beside the database: a cache, healed from the rows, never the truth.

File: a header of 64 KiB (magic, cache id, number of keys, checksum of each block of 2^20 keys), then the
keys in the order of their ids, 8 bytes each. Keys are written first and the header after; whatever a crash
leaves, a block whose checksum does not fit is read again from the rows. Processes take turns at writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import uuid
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from sqlalchemy import Connection

from diffmark.registry.query import Keys
from diffmark.registry.store import Store

MAGIC = b"DMKEYS01"
HEADER = 1 << 16
FIXED = struct.Struct("<8s16sQ")  # magic, cache id, number of keys; then the table of checksums
BLOCK = 1 << 20  # keys under one checksum
MAX_BLOCKS = (HEADER - FIXED.size - 4) // 4  # 16,376 blocks: 1.7e10 keys


class KeyCache:
    """`keys` is the array (N,) uint64 in the order of ids; `refresh` brings it up to the rows."""

    def __init__(self, path: Path | None, store: Store) -> None:
        self.path = path
        self.store = store
        self.keys: Keys = np.empty(0, dtype=np.uint64)
        self.healed: list[str] = []  # what had to be repaired on opening
        if path is not None:
            try:
                self._open()
            except OSError as error:
                self._do_without(error)

    def refresh(self, connection: Connection) -> None:
        """Add the rows that are not in the array yet."""
        count = self.store.count(connection)
        if count <= len(self.keys):
            return
        if self.path is not None:
            try:
                with self._locked() as file:
                    self._map()  # another process may have been first
                    for block in self.store.keys(connection, after=len(self.keys), up_to=count):
                        self._append(file, block)
                        self._map()
                return
            except OSError as error:
                self._do_without(error)
        blocks = list(self.store.keys(connection, after=len(self.keys), up_to=count))
        self.keys = np.concatenate([self.keys, *blocks])

    def _open(self) -> None:
        """Map the file if it is this registry's, and heal what does not fit its checksums."""
        with self._locked() as file:
            found = _read_header(file)
            if found is None or found[0] != uuid.UUID(self.store.cache_id).bytes:
                if os.fstat(file.fileno()).st_size:
                    self.healed.append("header was damaged or of another registry: made anew")
                    os.unlink(file.name)  # not cut short: another process may have it mapped
                    return self._open()
                self._write_header(file, 0, [])
            self._map()
            with self.store.read() as connection:
                rows = self.store.count(connection)
                if len(self.keys) > rows:  # a cache of later rows than the restored database has
                    self.healed.append(f"{len(self.keys)} keys cached, {rows} rows: shortened")
                    self._shorten(file, rows)
                for number, start in enumerate(range(0, len(self.keys), BLOCK)):
                    stop = min(start + BLOCK, len(self.keys))
                    if _checksum(self.keys[start:stop]) != self.checksums[number]:
                        self.healed.append(
                            f"keys {start + 1} ... {stop} did not fit their checksum: read again"
                        )
                        self._rewrite(file, connection, number, start, stop)
                self._map()

    def _map(self) -> None:
        """Map as many keys as the header says and the file holds."""
        assert self.path is not None
        with open(self.path, "rb") as file:
            header = _read_header(file)
            held = max(0, os.fstat(file.fileno()).st_size - HEADER) // 8
        _, count, self.checksums = header or (b"", 0, [])
        count = min(count, held)
        if count:
            mapped = np.memmap(self.path, dtype="<u8", mode="r", offset=HEADER, shape=(count,))
            self.keys = np.asarray(mapped)  # the compiled loops take plain arrays
        else:
            self.keys = np.empty(0, dtype=np.uint64)

    def _append(self, file: BinaryIO, block: Keys) -> None:
        """Write keys after the last one, then the header that counts them."""
        count, checksums = len(self.keys), list(self.checksums)
        file.seek(HEADER + 8 * count)
        file.write(block.tobytes())
        file.flush()
        while len(block):
            room = BLOCK - count % BLOCK
            if count % BLOCK == 0:
                checksums.append(0)
            checksums[-1] = _checksum(block[:room], checksums[-1])
            count += len(block[:room])
            block = block[room:]
        self._write_header(file, count, checksums)

    def _rewrite(self, file: BinaryIO, connection: Connection, number: int, start: int, stop: int) -> None:
        fresh = np.concatenate(list(self.store.keys(connection, after=start, up_to=stop)))
        file.seek(HEADER + 8 * start)
        file.write(fresh.tobytes())
        file.flush()
        self.checksums[number] = _checksum(fresh)
        self._write_header(file, len(self.keys), self.checksums)

    def _shorten(self, file: BinaryIO, count: int) -> None:
        """Forget the keys past `count`. The file keeps its size: another process may have it mapped."""
        blocks = -(-count // BLOCK)
        checksums = self.checksums[:blocks]
        if count % BLOCK:
            checksums[-1] = _checksum(self.keys[(blocks - 1) * BLOCK : count])
        self._write_header(file, count, checksums)
        self._map()

    def _write_header(self, file: BinaryIO, count: int, checksums: list[int]) -> None:
        if len(checksums) > MAX_BLOCKS:
            raise OSError(errno.EFBIG, f"one cache holds {MAX_BLOCKS * BLOCK} keys", str(self.path))
        fixed = FIXED.pack(MAGIC, uuid.UUID(self.store.cache_id).bytes, count)
        header = fixed + np.array(checksums, dtype="<u4").tobytes()
        file.seek(0)
        file.write(header.ljust(HEADER - 4, b"\0"))
        file.write(struct.pack("<I", zlib.crc32(header.ljust(HEADER - 4, b"\0"))))
        file.flush()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file, open for writing, with all other writers kept out."""
        assert self.path is not None
        with open(self.path, "r+b", opener=_create) as file:
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _do_without(self, error: OSError) -> None:
        """Go on with the keys in memory only; the rows are the truth, so nothing is lost."""
        warnings.warn(f"key cache {self.path} cannot be used, keys are held in memory: {error}", stacklevel=3)
        self.path = None


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def _checksum(keys: Keys, so_far: int = 0) -> int:
    return zlib.crc32(keys.view(np.uint8), so_far)  # type: ignore[arg-type]


def _read_header(file: BinaryIO) -> tuple[bytes, int, list[int]] | None:
    """(cache id, number of keys, checksums), or None if it is not the header of a cache."""
    file.seek(0)
    header = file.read(HEADER)
    if len(header) < HEADER or zlib.crc32(header[:-4]) != struct.unpack("<I", header[-4:])[0]:
        return None
    magic, cache_id, count = FIXED.unpack(header[: FIXED.size])
    if magic != MAGIC:
        return None
    blocks = -(-count // BLOCK)
    table = np.frombuffer(header, dtype="<u4", count=blocks, offset=FIXED.size)
    return cache_id, count, [int(checksum) for checksum in table]


def cache_path(store: Store) -> Path | None:
    """Beside the SQLite file; in the user's cache folder for PostgreSQL; None in memory."""
    if store.dialect == "sqlite":
        return store.file and store.file.with_name(store.file.name + ".keys")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffmark"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{store.cache_id}.keys"
