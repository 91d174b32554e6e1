"""Tables of Markdown, and their places in pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    """A line for the heads, and one for each of `lines`."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def between(name: str, new: str, text: str) -> str:
    """A page with something new between its two comments of a name."""
    marked = f"<!-- {name} -->\n{new}\n<!-- end {name} -->"
    return re.sub(rf"(?s)<!-- {name} -->.*<!-- end {name} -->", lambda _: marked, text)
