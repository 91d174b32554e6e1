"""Methods and attacks from outside the package: by entry point, or as `module:name`.

A package offers a method under the entry point group `diffmark.methods` and attacks under `diffmark.attacks`. A
method is a subclass of `diffmark.baselines.base.Method`; it is made with those of `pipe` and `sampling` that its
constructor names. Attacks are an `Attack` or several.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from diffmark.attacks.base import Attack
from diffmark.baselines.base import Method


def offered(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer under a group, by name."""
    return {point.name: point for point in entry_points(group=group)}


def load_object(place: str) -> Any:
    """What stands at `module:name`."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place}: {error}; a plug-in is named module:name") from error


def make_method(made: Any, pipe: Any, sampling: Any, place: str = "plug-in") -> Method:
    """A method of a plug-in's class or function."""
    given = {"pipe": pipe, "sampling": sampling}
    known = inspect.signature(made).parameters
    method = made(**{name: value for name, value in given.items() if name in known})
    if not isinstance(method, Method):
        raise ValueError(
            f"{place}: a method is a diffmark.baselines.base.Method, got {type(method).__name__}"
        )
    return method


def as_attacks(found: Any, place: str = "plug-in") -> list[Attack]:
    """The attacks of a plug-in: one, several, or a function that gives them."""
    if callable(found) and not isinstance(found, Attack):
        found = found()
    attacks = [found] if isinstance(found, Attack) else list(found) if isinstance(found, Iterable) else []
    if not attacks or not all(isinstance(attack, Attack) for attack in attacks):
        raise ValueError(f"{place}: expected a diffmark.attacks.base.Attack, or several")
    return attacks
