"""The payload options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffmark.payload.scheme import PayloadScheme


def read_scheme(key_file: Path | None, widths: str, length: int) -> PayloadScheme | None:
    """The scheme under the key in a file, with widths as in "20,13,12"; None without a file."""
    if key_file is None:
        return None
    from diffmark.payload.scheme import PayloadScheme

    try:
        numbers = [int(width) for width in widths.split(",")]
    except ValueError:
        raise ValueError(f"payload bits are three numbers, as in 20,13,12, got {widths!r}") from None
    return PayloadScheme.from_file(key_file, length, numbers)
