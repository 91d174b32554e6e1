"""Web pages for `pixel_corpus`, drawn from seeds and rendered by Chromium."""

from __future__ import annotations

import html
import shutil
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
from pictures import PARTS, split
from tqdm import tqdm

Rng = np.random.Generator

PAGE = (1024, 1600)  # pixels of a rendered page
FONTS = (
    "DejaVu Sans",
    "DejaVu Serif",
    "DejaVu Sans Mono",
    "Liberation Sans",
    "Liberation Serif",
    "monospace",
)


def render_pages(folder: Path, part: str, count: int, seed: int) -> None:
    """Web pages of a part as PNG files; those that are there are kept."""
    missing = [i for i in range(count) if not (folder / f"{part}-{i:04d}.png").exists()]
    if not missing:
        return
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    options = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root, and in containers
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": PAGE[0], "height": PAGE[1]})
        for number in tqdm(missing, f"pages, {part}", disable=None):
            page.set_content(page_html(part, np.random.default_rng([seed, PARTS.index(part), number])))
            page.screenshot(path=str(folder / f"{part}-{number:04d}.png"))
        browser.close()


@cache
def _sources(part: str) -> tuple[str, ...]:
    """Modules of Python's library: their code, and words for prose."""
    library = Path(sysconfig.get_path("stdlib"))
    return tuple(path.read_text("utf-8", "replace") for path in split(library.glob("*.py"), part))


def page_html(part: str, rng: Rng) -> str:
    """A page of headings, prose, tables, code, buttons and bars in random colours and type."""
    dark = rng.random() < 0.3
    ground, ink = ("#16181d", "#d8dce4") if dark else ("#ffffff", "#1c1e22")
    if rng.random() < 0.25:
        ground = f"hsl({int(rng.integers(360))} 40% {12 if dark else 92}%)"
    accent = f"hsl({int(rng.integers(360))} 70% 45%)"
    style = (
        f"body{{background:{ground};color:{ink};margin:{int(rng.integers(4, 48))}px;"
        f"font:{int(rng.integers(9, 24))}px '{FONTS[int(rng.integers(len(FONTS)))]}';"
        f"columns:{int(rng.choice([1, 1, 1, 2, 3]))};line-height:{rng.uniform(1.1, 1.8):.2f}}}"
        f"td,th{{border:1px solid {accent};padding:3px}} h2{{color:{accent}}}"
        f"pre{{background:#8882;overflow:hidden;font-size:{int(rng.integers(8, 18))}px}}"
        f".bar{{background:{accent};height:{int(rng.integers(8, 60))}px;border-radius:6px;margin:6px 0}}"
    )
    blocks = [_BLOCKS[int(rng.integers(len(_BLOCKS)))](part, accent, rng) for _ in range(14)]
    return f"<!doctype html><style>{style}</style>{''.join(blocks)}"


def _words(part: str, count: int, rng: Rng) -> str:
    words = [word for word in _excerpt(part, 40 * count, rng).split() if word.isalpha() and len(word) < 20]
    return " ".join(words[:count])


def _excerpt(part: str, length: int, rng: Rng) -> str:
    text = _sources(part)[int(rng.integers(len(_sources(part))))]
    start = int(rng.integers(max(1, len(text) - length)))
    return text[start : start + length]


def _prose(part: str, accent: str, rng: Rng) -> str:
    heading = f"<h2>{_words(part, int(rng.integers(2, 7)), rng)}</h2>"
    return heading + "".join(f"<p>{_words(part, int(rng.integers(20, 120)), rng)}.</p>" for _ in range(2))


def _table(part: str, accent: str, rng: Rng) -> str:
    columns = int(rng.integers(2, 8))

    def cell(_: int) -> str:
        text = f"{rng.normal(0, 1000):.2f}" if rng.random() < 0.6 else _words(part, 2, rng)
        return f"<td>{text}</td>"

    rows = (f"<tr>{''.join(map(cell, range(columns)))}</tr>" for _ in range(int(rng.integers(3, 16))))
    return f"<table>{''.join(rows)}</table>"


def _code(part: str, accent: str, rng: Rng) -> str:
    return f"<pre>{html.escape(_excerpt(part, int(rng.integers(300, 1500)), rng))}</pre>"


def _bars(part: str, accent: str, rng: Rng) -> str:
    widths = rng.integers(5, 100, int(rng.integers(2, 8)))
    return "".join(f"<div class=bar style='width:{width}%'></div>" for width in widths)


def _buttons(part: str, accent: str, rng: Rng) -> str:
    names = (_words(part, 2, rng) for _ in range(int(rng.integers(2, 9))))
    return "".join(f"<button>{name}</button> <input value='{int(rng.integers(9999))}'> " for name in names)


_BLOCKS = (_prose, _prose, _table, _code, _bars, _buttons)
