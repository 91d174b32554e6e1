"""Record files: a JSON line for every marked image, with its secret."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RECORDS = "images.jsonl"  # of a folder


def append_record(path: Path, record: dict[str, Any]) -> None:
    """A line of a record file, on disk before this returns. It holds secrets: only its owner may read it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())
