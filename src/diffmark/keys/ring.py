"""Rings of operator keys: the first key writes, all of them read.

A ring is a text file of mode 600 with a key a line, 64 hex digits and, if known, the day it was made; what follows
a `#` is a comment. It is looked for, in this order, in

    DIFFMARK_KEY            the lines themselves, separated by line ends or commas
    DIFFMARK_KEY_FILE       the path of a file
    DIFFMARK_KEY_COMMAND    a command that prints the lines (a key management service)
    operator.keys           in the user's data folder, where the first start of a registry puts one

and where there is none, it is the public key: for trying out, as everybody can write and read with it.
"""

from __future__ import annotations

import datetime
import os
import secrets
import shlex
import string
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diffmark.pixel.keys import KEY_BYTES, PUBLIC_KEY, OperatorKey, is_cut_hex
from diffmark.private import check_private, create_private, data_folder, replace_private

KEY, FILE, COMMAND = "DIFFMARK_KEY", "DIFFMARK_KEY_FILE", "DIFFMARK_KEY_COMMAND"
PUBLIC, COMMAND_PREFIX = "public", "command:"
MAX_KEYS = 16  # of a ring: every key is a try
COMMAND_SECONDS = 30
HEX = set(string.hexdigits)
FORM = f"an operator key is {2 * KEY_BYTES} hex digits"


@dataclass(frozen=True)
class KeyRing:
    """Operator keys, newest first, and where they came from. Never shows a key."""

    keys: tuple[OperatorKey, ...]
    origin: str
    days: tuple[str, ...] = ()  # on which each was made, as far as it is known

    def __post_init__(self) -> None:
        if not self.keys:
            raise ValueError(f"{self.origin}: there is no key in it")
        if len(self.keys) > MAX_KEYS:
            raise ValueError(f"{self.origin}: a ring has at most {MAX_KEYS} keys, got {len(self.keys)}")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError(f"{self.origin}: a key is in it twice")

    @property
    def current(self) -> OperatorKey:
        """The key that marks are written with."""
        return self.keys[0]

    @property
    def older(self) -> tuple[OperatorKey, ...]:
        """Keys that are read besides."""
        return self.keys[1:]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self.keys)

    @property
    def is_public(self) -> bool:
        """Whether marks are written with the key that everybody has."""
        return self.current == PUBLIC_KEY

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[OperatorKey]:
        return iter(self.keys)

    def __repr__(self) -> str:
        return f"KeyRing(ids={self.ids}, origin={self.origin!r})"

    def __str__(self) -> str:
        """One line for people."""
        if self.is_public:
            return (
                f"public key {self.current.id}, for trying out: anybody can write and remove such marks "
                "(`diffmark key new` makes your own)"
            )
        older = f", older ones {', '.join(self.ids[1:])}" if self.older else ""
        return f"operator key {self.current.id}{older}, from {self.origin}"


PUBLIC_RING = KeyRing((PUBLIC_KEY,), "the package")
RingLike = KeyRing | OperatorKey | bytes | str | Path | None


def as_ring(value: RingLike = None) -> KeyRing:
    """A ring, a key, its bytes or hex digits, a file, "command:..." or "public"; None: the ring that is found."""
    if value is None:
        return find_ring()
    if isinstance(value, KeyRing):
        return value
    if isinstance(value, OperatorKey):
        return KeyRing((value,), "the caller")
    if isinstance(value, (bytes, bytearray)):
        return KeyRing((OperatorKey(bytes(value)),), "the caller")
    if value == PUBLIC:
        return PUBLIC_RING
    if isinstance(value, str) and value.startswith(COMMAND_PREFIX):
        return _printed(value.removeprefix(COMMAND_PREFIX))
    if isinstance(value, str) and _is_hex(value):
        return parse(value, "the caller")
    if not isinstance(value, (str, Path)):
        raise TypeError(f"an operator key is bytes, hex digits or a file, got {type(value).__name__}")
    if isinstance(value, str) and is_cut_hex(value):  # perhaps most of a key: it is not shown
        raise ValueError(f"neither a file nor a key, which is {2 * KEY_BYTES} hex digits; got {len(value)}")
    return read_ring(Path(value))


def find_ring() -> KeyRing:
    """The operator's ring from the environment or its file, or else the public key."""
    given = [name for name in (KEY, FILE, COMMAND) if os.environ.get(name)]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are both set: operator keys come from one place")
    if KEY in given:
        return parse(os.environ[KEY].replace(",", "\n"), KEY)
    if FILE in given:
        return read_ring(Path(os.environ[FILE]))
    if COMMAND in given:
        return _printed(os.environ[COMMAND])
    place = ring_path()
    return read_ring(place) if place.exists() else PUBLIC_RING


def ring_path() -> Path:
    """Where the operator's ring lies if nothing else is said."""
    return data_folder() / "operator.keys"


def parse(text: str, origin: str) -> KeyRing:
    """The ring in some lines. What is wrong is said without showing it: it may be a key."""
    keys, days = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or not _is_hex(words[0]):
            raise ValueError(f"{origin}, line {number}: {FORM}, and perhaps the day that it was made")
        if len(words) == 2:
            try:
                datetime.date.fromisoformat(words[1])
            except ValueError:
                raise ValueError(f"{origin}, line {number}: a day is written 2027-01-31") from None
        keys.append(OperatorKey(bytes.fromhex(words[0])))
        days.append(words[1] if len(words) == 2 else "")
    if not keys:
        raise ValueError(f"{origin}: there is no key in it: {FORM}")
    return KeyRing(tuple(keys), origin, tuple(days))


def read_ring(path: Path) -> KeyRing:
    """The ring in a file; one that others can read is refused."""
    check_private(path, "operator keys")
    try:
        return parse(path.read_text("utf-8"), str(path))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {FORM} a line") from None


def new_ring(path: Path, older: tuple[OperatorKey, ...] = ()) -> KeyRing:
    """A ring with a fresh key in a file that must not exist; `older` keys are read besides."""
    lines = [f"{secrets.token_hex(KEY_BYTES)} {datetime.date.today()}", *(_digits(key) for key in older)]
    try:
        create_private(path, "\n".join(lines) + "\n")
    except FileExistsError:
        raise FileExistsError(
            f"{path}: there are operator keys already; `diffmark key rotate` adds one"
        ) from None
    return read_ring(path)


def rotate(path: Path) -> KeyRing:
    """A fresh key in front of those in a file, which go on being read."""
    ring = read_ring(path)
    if len(ring) == MAX_KEYS:
        raise ValueError(
            f"{path}: a ring has at most {MAX_KEYS} keys: take out the oldest, which ends its marks"
        )
    fresh = f"{secrets.token_hex(KEY_BYTES)} {datetime.date.today()}\n"
    replace_private(path, fresh + path.read_text("utf-8"))
    return read_ring(path)


def _printed(command: str) -> KeyRing:
    """The ring that a command prints; it is run without a shell, and what it says is never shown."""
    words = shlex.split(command)
    if not words:
        raise ValueError("there is no command after command:")
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(
            f"the command for operator keys, {words[0]}, failed: {type(error).__name__}"
        ) from None
    if done.returncode:
        raise ValueError(f"the command for operator keys, {words[0]}, ended with {done.returncode}")
    return parse(done.stdout, f"the command {words[0]}")


def _digits(key: OperatorKey) -> str:
    return key._key.hex()


def _is_hex(text: str) -> bool:
    return len(text) == 2 * KEY_BYTES and set(text) <= HEX
