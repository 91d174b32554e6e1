"""Words of the public page and of its answers, in the languages of `server/languages/*.json`."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

LANGUAGES = {"en": "English", "de": "Deutsch", "fr": "Français", "es": "Español", "zh": "中文"}
PLACE = re.compile(r"\{t:(\w+)\}")


@dataclass(frozen=True)
class Words:
    """One language: `words("headline", rate=...)`."""

    language: str
    texts: dict[str, str]

    def __call__(self, name: str, **values: Any) -> str:
        return self.texts[name].format(**{key: _number(value) for key, value in values.items()})

    def fill(self, page: str) -> str:
        """A page with `{t:name}` replaced by the words."""
        return PLACE.sub(lambda found: html.escape(self.texts[found[1]], quote=True), page)


def _number(value: Any) -> Any:
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else value


@cache
def words_in(language: str) -> Words:
    file = resources.files("diffmark.server") / "languages" / f"{language}.json"
    return Words(language, json.loads(file.read_text("utf-8")))


def chosen(asked: str | None, accepted: str) -> Words:
    """The language of a request: the one asked for, else the first known one of Accept-Language, else English."""
    if asked in LANGUAGES:
        return words_in(asked)
    wanted = []
    for order, entry in enumerate(accepted[:500].split(",")):
        name, _, rest = entry.strip().partition(";")
        quality = re.fullmatch(r"\s*q\s*=\s*([01](?:\.\d{1,3})?)\s*", rest)
        weight = float(quality[1]) if quality else 1.0 if not rest else 0.0
        language = name.strip().lower().split("-")[0]
        if language in LANGUAGES and weight > 0:
            wanted.append((-weight, order, language))
    return words_in(min(wanted)[2] if wanted else "en")
