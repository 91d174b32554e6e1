"""What is done to each image: hashed, passed over if its row is there already, decoded, decided."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from diffmark.bulk.sources import Item
from diffmark.images import ImageError
from diffmark.keys.ring import as_ring

DETECTED = pa.schema(
    [
        ("source", pa.string()),
        ("url", pa.string()),
        ("sha256", pa.string()),  # of the file; null if it could not be fetched
        ("verdict", pa.string()),  # null if there is an error
        ("test", pa.string()),
        ("p_value", pa.float64()),
        ("reader", pa.string()),  # who read it
        ("bits", pa.string()),  # what was read, as hex
        ("margins", pa.list_(pa.float32())),
        ("notes", pa.list_(pa.string())),
        ("error", pa.string()),  # why there is no verdict
    ]
)


@dataclass(frozen=True)
class Settings:
    """How images are read; a bulk run keeps to one."""

    codec: str = "auto"
    vae: str | None = None
    fpr: float = 1e-3
    batch_size: int = 8
    device: str | None = None
    key: str | None = None  # operator keys as --key names them: a file or a command, never a key
    key_ids: tuple[str, ...] = ()  # that a worker has to find there
    search: bool = True  # for turned, cropped and framed pictures


class Worker:
    """A detector, loaded once, and the digests of what is done already."""

    def __init__(self, settings: Settings, done: np.ndarray) -> None:
        from diffmark.detection.joint import open_detector

        ring = as_ring(settings.key)
        if settings.key_ids and ring.ids != settings.key_ids:
            raise ValueError(
                f"the run reads with operator keys {', '.join(settings.key_ids)}, and a worker has {ring}"
            )
        self.detector = open_detector(
            settings.codec,
            settings.vae,
            ring,
            search=settings.search,
            fpr=settings.fpr,
            device=settings.device,
            batch_size=settings.batch_size,
        )
        self.done = done

    def rows(self, items: Sequence[Item]) -> pa.Table:
        """A row for each item that has none yet."""
        hashes = [None if item.data is None else hashlib.sha256(item.data).hexdigest() for item in items]
        known = _among(self.done, [digest(item.source, sha) for item, sha in zip(items, hashes, strict=True)])
        left = [(item, sha) for item, sha, old in zip(items, hashes, known, strict=True) if not old]
        outcomes = self.detector.scan([item.data for item, _ in left if item.data is not None])
        rows: list[dict[str, Any]] = []
        for item, sha in left:
            row: dict[str, Any] = {"source": item.source, "url": item.url, "sha256": sha, "error": item.error}
            if item.data is not None:
                found = next(outcomes)
                if isinstance(found, ImageError):
                    row["error"] = str(found).removeprefix("bytes: ")
                else:
                    row |= {"verdict": found.verdict, "test": found.test, "p_value": found.p_value}
                    row |= {
                        "reader": found.reader,
                        "bits": found.secret,
                        "margins": found.margins,
                        "notes": list(found.notes),
                    }
            rows.append(row)
        return pa.Table.from_pylist(rows, DETECTED)


def digest(source: str, sha: str | None) -> bytes:
    """What makes a row: the place and the content. 16 bytes."""
    return hashlib.blake2b(f"{source}\0{sha or ''}".encode(), digest_size=16).digest()


def digests(pairs: Sequence[tuple[str, str | None]]) -> np.ndarray:
    """Digests of (source, sha256), sorted."""
    return np.sort(np.array([digest(source, sha) for source, sha in pairs], "S16"))


def _among(known: np.ndarray, wanted: Sequence[bytes]) -> np.ndarray:
    """Which of the digests are among the known ones (sorted)."""
    array = np.array(wanted, "S16")
    if not len(known):
        return np.zeros(len(array), bool)
    places = np.searchsorted(known, array).clip(max=len(known) - 1)
    return known[places] == array
