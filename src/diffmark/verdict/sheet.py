"""A signed verdict as one HTML page to print or to save as PDF, with the whole signature in a QR code."""

from __future__ import annotations

import html

from diffmark.verdict.jws import compact
from diffmark.verdict.statement import Statement

WORDS = {
    "marked": "The file carries a mark.",
    "not marked": "No mark was found in the file. That is no proof that there never was one.",
    "undecided": "Whether the file carries a mark cannot be told.",
}
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


def sheet(text: str, statement: Statement, key: str) -> str:
    """The page; `text` is the signed verdict in either form, whose signature by `key` was checked."""
    signature = compact(text)
    rows = {
        "File (SHA-256)": statement.sha256,
        "Size": f"{statement.bytes:,} bytes",
        "Verdict": statement.verdict,
        "Basis": ", ".join(statement.basis),
        "Probability of error": _error(statement),
        "Time (UTC)": statement.time,
        "Detector": "; ".join(
            f"{name} {value}" for name, value in statement.detector.items() if value is not None
        ),
        "Issued by": statement.issuer or "not stated",
        "Signing key": key,
        "Number": statement.id,
    }
    listed = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in rows.items()
    )
    headline = html.escape(WORDS.get(statement.verdict, statement.verdict))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Verdict {html.escape(statement.id)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{headline}</h1><dl>{listed}</dl>"
        f'<figure><img src="{qr(signature)}" alt="QR code of the signed verdict">'
        "<figcaption>The signed verdict. Its text, saved to a file, is checked by "
        "<code>diffmark verdict verify FILE IMAGE --key KEYS</code>.</figcaption></figure>"
        "</main><footer>A mark is evidence, not proof. Weigh it with logs, signed credentials and human "
        "judgement.</footer></body></html>\n"
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


def _error(statement: Statement) -> str:
    if statement.error_probability is None:
        return "not known"
    if statement.verdict == "marked" and statement.error_is == "exact":
        return f"{statement.error_probability:.3g}, that a file without a mark looks marked as surely as this one"
    if statement.error_is == "exact":
        return f"{statement.error_probability:.3g} of files without a mark look marked as surely as this one"
    return f"at most {statement.error_probability:.3g} of files without a mark are called marked"
