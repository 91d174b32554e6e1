"""Run files: one TOML a training run, read into dataclasses; a key that does not exist is an error."""

import sys
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


T = TypeVar("T")


@dataclass(frozen=True)
class LoopConfig:
    """How long and how fast: warm-up, plateau, linear descent to zero over the last `decay` steps."""

    steps: int
    batch: int
    learning_rate: float
    seed: int = 0
    warmup: int = 100
    decay: int = 1000
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.0  # decay of the moving average of the weights; 0 keeps none
    log_every: int = 50
    save_every: int = 500


def read_config(path: Path, kind: type[T]) -> T:
    """A run file as the dataclass `kind`."""
    with open(path, "rb") as file:
        return from_dict(tomllib.load(file), kind, str(path))


def from_dict(values: dict[str, Any], kind: type[T], where: str) -> T:
    """Build the dataclass `kind`; a table becomes the dataclass of its field, a list a tuple."""
    if not is_dataclass(kind):
        raise TypeError(f"{kind} is not a dataclass")
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}; there are {', '.join(known)}")
        if isinstance(value, dict):
            made[key] = from_dict(value, hints[key], f"{where}: {key}")
        else:
            made[key] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**made)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
