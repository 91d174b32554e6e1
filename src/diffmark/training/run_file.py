"""Run files: one TOML a training run, read into dataclasses. A key that does not exist is an error."""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


def read_run_file(path: str | Path, kind: type[T]) -> T:
    """A run file as the dataclass `kind`. It overrides the settings of the file that it names as `base`, if any."""
    return from_dict(_read_tables(Path(path)), kind, str(path))


def _read_tables(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        try:
            values = tomllib.load(file)
        except (tomllib.TOMLDecodeError, RecursionError) as error:  # the latter for nesting without end
            raise ValueError(f"{path} is not TOML: {error}") from error
    base = values.pop("base", None)
    return _merged(_read_tables(path.parent / base), values) if base else values


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` over `below`, table by table; injections and attacks are given whole, never mixed."""
    merged = dict(below)
    for key, value in above.items():
        mixes = (
            isinstance(value, dict)
            and isinstance(below.get(key), dict)
            and key not in ("injection", "bridge_injection", "ddim_injection", "attacks")
        )
        merged[key] = _merged(below[key], value) if mixes else value
    return merged


def from_dict(values: dict[str, Any], kind: type[T], where: str) -> T:
    """Build the dataclass `kind` from tables and values; what it does not know raises with its place."""
    hints = get_type_hints(kind)
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}; there are {', '.join(known)}")
        made[key] = _value(value, hints[key], f"{where}: {key}")
    try:
        return kind(**made)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _value(value: Any, hint: Any, where: str) -> Any:
    if isinstance(hint, UnionType):  # something or None, which a run file says by leaving it out
        hint = get_args(hint)[0]
    if is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is a table, got {value!r}")
        return from_dict(value, hint, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = hint if isinstance(hint, type) else get_origin(hint)
    if plain is tuple and isinstance(value, list):
        return tuple(value)
    if plain in (int, float, str, bool, dict) and type(value) is not plain:
        raise ValueError(f"{where} is a {plain.__name__}, got {value!r}")
    return value
