"""One issued key as users see it, and what a principal may be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffmark import secret
from diffmark.registry.answers import status as status_of
from diffmark.registry.query import LENGTH, Keys

MAX_PRINCIPAL = 200  # characters of a principal


@dataclass(slots=True)
class Key:
    """One issued key."""

    id: int
    hex: str
    principal: str
    status: str = "live"
    created: int = 0
    expires: int | None = None
    revoked: int | None = None
    context: str | None = None

    @property
    def secret(self) -> NDArray[np.uint8]:
        """The 64 bits to embed, shape (64,)."""
        return secret.from_hex(self.hex, LENGTH)

    def __int__(self) -> int:
        return int(self.hex, 16)

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True)
class IssuedKeys(Sequence[Key]):
    """Keys of one call, made into objects when they are looked at: a million of them would take a second."""

    ids: range
    keys: Keys  # (n,) uint64
    principals: Sequence[str]
    created: int
    expires: int | None
    context: str | None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return Key(
            self.ids[place],
            f"{self.keys[place]:016x}",
            self.principals[place],
            "live",
            self.created,
            self.expires,
            None,
            self.context,
        )


def key_of(row: Any, moment: int) -> Key:
    """A row as a Key."""
    return Key(
        row.id,
        f"{row.key % 2**64:016x}",
        row.principal,
        status_of(row, moment),
        row.created,
        row.expires,
        row.revoked,
        row.context,
    )


def check_principals(principals: Sequence[str]) -> None:
    """Pseudonyms only: refuses what is empty, endless, unprintable or plainly an address."""
    if not len(principals):
        raise ValueError("principals must name at least one account")
    if not all(map(_is_short_text, principals)) or not "".join(principals).isprintable():
        wrong = next(name for name in principals if not _is_short_text(name) or not name.isprintable())
        raise ValueError(f"a principal is 1 to {MAX_PRINCIPAL} printable characters, got {wrong!r}")
    if "@" in "".join(principals):
        address = next(name for name in principals if "@" in name)
        raise ValueError(
            f"principal {address!r} looks like an address: principals are pseudonyms; keep the "
            "identity in the sealed table with `diffmark registry identity`"
        )


def _is_short_text(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_PRINCIPAL
