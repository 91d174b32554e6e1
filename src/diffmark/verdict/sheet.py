"""A signed verdict as one HTML page to print or to save as PDF, with the whole signature in a QR code."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib import resources

from diffmark.verdict.jws import compact
from diffmark.verdict.statement import Statement

STYLE = """
:root { color-scheme: light dark; --line: #8888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } dt { font-weight: 600; } dd { margin: 0 0 .6rem; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; }
img { width: 100%; max-width: 24rem; background: #fff; box-sizing: border-box; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
footer { border-top: 1px solid var(--line); padding-top: .8rem; }
@media print { :root { color-scheme: light; } body { margin: 0; } img { max-width: 13cm; } }
"""


LEVEL, BORDER = "m", 4  # of the QR code: error correction, modules around it


@cache
def languages() -> dict[str, dict[str, str]]:
    """The words of the page, by language."""
    text = (resources.files("diffmark.verdict") / "languages.json").read_text("utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def sheet(text: str, statement: Statement, key: str, language: str = "en") -> str:
    """The page; `text` is the signed verdict in either form, whose signature by `key` was checked."""
    signature, words = compact(text), languages()[language]
    rows = {
        "file": statement.sha256,
        "size": words["bytes"].format(count=f"{statement.bytes:,}".replace(",", "\u202f")),
        "basis": ", ".join(words.get(basis, basis) for basis in statement.basis),
        "error": _error(statement, words),
        "time": statement.time,
        "detector": "; ".join(
            f"{name} {value}" for name, value in statement.detector.items() if value is not None
        ),
        "issuer": statement.issuer or words["unstated"],
        "key": key,
        "number": statement.id,
    }
    listed = "".join(
        f"<dt>{html.escape(words[name])}</dt><dd>{html.escape(value)}</dd>" for name, value in rows.items()
    )
    said = {name: html.escape(value) for name, value in words.items()}
    return (
        f'<!doctype html>\n<html lang="{language}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{said['title']} {html.escape(statement.id)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{said.get(statement.verdict, html.escape(statement.verdict))}</h1><dl>{listed}</dl>"
        f'<figure><img src="{qr(signature)}" alt="{said["code"]}">'
        f"<figcaption>{said['caption']} "
        "<code>diffmark verdict verify FILE IMAGE --key KEYS</code></figcaption></figure>"
        f"</main><footer>{said['footer']}</footer></body></html>\n"
    )


def qr(text: str) -> str:
    """A QR code as a data address: SVG, sharp at any size."""
    try:
        import segno
    except ImportError as error:
        raise ImportError("QR codes need the extra `serve`: pip install 'diffmark[serve]'") from error
    address: str = segno.make(text, error=LEVEL, micro=False).svg_data_uri(
        border=BORDER, light="#fff", omitsize=True
    )
    return html.escape(address, quote=True)


def _error(statement: Statement, words: dict[str, str]) -> str:
    if statement.error_probability is None:
        return words["error_unknown"]
    if statement.error_is == "exact":
        said = "error_marked" if statement.verdict == "marked" else "error_exact"
    else:
        said = "error_bound"
    return words[said].format(rate=f"{statement.error_probability:.3g}")
