"""One self-contained HTML page from a folder of results."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.figures import FIGURES
from diffmark.evaluation.lab import Row

HIDDEN = ("ber", "distance")  # per-image lists belong to the figures
LONGEST_TABLE = 60


def write_report(folder: Path) -> Path:
    """index.html for every NAME.json of an experiment in the folder, with its figure also as NAME.png."""
    parts = []
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if path.exists():
            parts.append(section(name, json.loads(path.read_text()), folder))
    if not parts:
        raise ValueError(f"{folder} holds no results of {', '.join(EXPERIMENTS)}")
    (folder / "index.html").write_text(PAGE.replace("{{parts}}", "\n".join(parts)))
    return folder / "index.html"


def section(name: str, document: dict[str, Any], folder: Path) -> str:
    """Heading, what was run, figure and table of one experiment."""
    about = (EXPERIMENTS[name].__doc__ or "").splitlines()[0]
    said = f"<p>{html.escape(about)}</p><p><code>{html.escape(document['command'])}</code></p>"
    picture = ""
    if name in FIGURES:
        buffer = io.BytesIO()
        FIGURES[name](document["rows"]).savefig(buffer, format="png")
        (folder / f"{name}.png").write_bytes(buffer.getvalue())
        data = base64.b64encode(buffer.getvalue()).decode()
        picture = f'<img alt="{name}" src="data:image/png;base64,{data}">'
    head = {key: document[key] for key in ("config", "versions", "revision")}
    details = (
        f"<details><summary>setting</summary><pre>{html.escape(json.dumps(head, indent=1))}</pre></details>"
    )
    return f"<section><h2>{name}</h2>{said}{picture}{table(document['rows'])}{details}</section>"


def table(rows: list[Row]) -> str:
    """The rows as an HTML table; rates with their intervals in one cell."""
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in HIDDEN]
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell(row.get(name)))}</td>" for name in columns) + "</tr>"
        for row in rows
    )
    opened = " open" if len(rows) <= LONGEST_TABLE else ""
    return (
        f"<details{opened}><summary>{len(rows)} rows</summary><table><tr>{head}</tr>{body}</table></details>"
    )


def cell(value: Any) -> str:
    """A value as a reader wants it."""
    if value is None:
        return ""
    if isinstance(value, dict) and "low" in value:
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>DiffMark evaluation</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{font:15px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;color:#222}
img{max-width:100%}table{border-collapse:collapse;font-size:.8rem;display:block;overflow-x:auto}
td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:left;white-space:nowrap}
pre{font-size:.75rem;background:#f4f4f4;padding:.5rem;overflow-x:auto}code{background:#f4f4f4}</style>
<h1>DiffMark evaluation</h1>
<p>Rates in brackets are exact 95% intervals. Every table can be made again with the command above it.</p>
{{parts}}</html>
"""
