"""One HTML page from a folder of results, beside its figures."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from diffmark.evaluation.experiments import EXPERIMENTS
from diffmark.evaluation.figures import FIGURES
from diffmark.evaluation.figures.detection import survival
from diffmark.evaluation.rows import Row
from diffmark.evaluation.summary import robustness_lines, words
from diffmark.evaluation.tables import columns_of, label, shown, spread

TITLES = {
    "clean": "Clean detection and quality",
    "false_positives": "False positives",
    "robustness": "Robustness",
    "strength": "Strength against quality",
    "keys": "Key flexibility",
    "transfer": "Transfer to other models",
    "latency": "Latency",
    "identification": "Identification among many keys",
    "averaging": "Security: averaging",
    "collusion": "Security: collusion",
    "forgery": "Security: forgery",
    "signal": "The signal itself",
    "ablations": "Ablations",
}
MAX_TABLE_ROWS = 30  # rows; longer ones are left to the CSV file
KEY_COLUMNS = (
    "method", "source", "attack", "strength", "images", "tpr_0.001_exact", "tpr", "bit_accuracy", "ssimulacra2",
    "butteraugli", "flip", "psnr", "ssim", "blockiness", "blockiness_unmarked", "frechet", "frechet_unmarked",
)  # fmt: skip
"""What a reader looks for first, in this order; the other columns follow."""


def write_report(folder: Path) -> Path:
    """index.html for every NAME.json of an experiment in the folder, with its figures also as PNG files."""
    documents = {
        name: json.loads(path.read_text())
        for name in EXPERIMENTS
        if (path := folder / f"{name}.json").exists()
    }
    if not documents:
        raise ValueError(f"{folder} holds no results of {', '.join(EXPERIMENTS)}")
    parts = [overview(documents, folder)] if "robustness" in documents else []
    parts += [section(name, document, folder) for name, document in documents.items()]
    links = "".join(f'<a href="#{name}">{html.escape(TITLES[name])}</a>' for name in documents)
    page = PAGE.replace("{{links}}", links).replace("{{parts}}", "\n".join(parts))
    (folder / "index.html").write_text(page)
    return folder / "index.html"


def overview(documents: dict[str, Any], folder: Path) -> str:
    """DiffMark's ranks in words and the plot of survival against visibility."""
    attacked = documents["robustness"]["rows"]
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in words(attacked))
    clean = documents.get("clean", {}).get("rows", [])
    plot = _figure("survival", survival(clean, attacked), survival.__doc__ or "", folder)
    return f'<section id="overview"><h2>In short</h2>{said}{plot}</section>'


def section(name: str, document: dict[str, Any], folder: Path) -> str:
    """Heading, what was run, figures and table of one experiment."""
    about = (EXPERIMENTS[name].__doc__ or "").splitlines()[0]
    rows, setting = document["rows"], document["config"]
    of = ", ".join(
        f"{value} {label(key)}" for key, value in setting.get("extent", {}).items() if isinstance(value, int)
    )
    head = {key: document[key] for key in ("command", "config", "versions", "revision")}
    return (
        f'<section id="{name}"><h2>{html.escape(TITLES[name])}</h2><p>{html.escape(about)}</p>'
        f"{cells_table(rows) if name == 'robustness' else ''}"
        f"{''.join(drawn(name, rows, folder))}{table(rows, name)}"
        f"<details><summary>how it was made: <code>{html.escape(document['command'])}</code></summary>"
        f"<p>{html.escape(of)}</p><pre>{html.escape(json.dumps(head, indent=1))}</pre></details></section>"
    )


def drawn(name: str, rows: list[Row], folder: Path) -> list[str]:
    """The figures of an experiment, as files and as parts of the page."""
    figures = FIGURES.get(name, {}).items()
    return [
        _figure(file, draw(rows) if rows else None, draw.__doc__ or file, folder) for file, draw in figures
    ]


def _figure(file: str, figure: Any, about: str, folder: Path) -> str:
    """Written beside the page, which stays small; empty where there is nothing to show."""
    if figure is None:
        return ""
    figure.savefig(folder / f"{file}.png")
    about = html.escape(about.splitlines()[0])
    width, height = (round(side) for side in figure.get_size_inches() * figure.dpi)
    return (
        f'<figure><img alt="{about}" src="{file}.png" loading="lazy" width="{width}" height="{height}">'
        f"<figcaption>{about}</figcaption></figure>"
    )


def cells_table(rows: list[Row]) -> str:
    """Attacks by methods: TPR at the operating point, mean over strengths, the best of a line bold."""
    methods, lines = robustness_lines(rows)
    if not methods:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ["TPR at FPR 0.1%", *methods])
    body = ""
    for name, *cells in lines:
        best = max((cell["value"] for cell in cells if cell and cell["value"] is not None), default=None)
        body += f"<tr><td>{html.escape(str(name).replace('_', ' '))}</td>"
        for cell in cells:
            value = cell["value"] if cell else None
            said = "" if value is None else f"{value:.2f}"
            between = f"{cell['low']:.2f} to {cell['high']:.2f}" if cell and "low" in cell else ""
            bold = ' class="best"' if value is not None and value == best and value > 0 else ""
            body += f'<td{bold} title="{between}">{said}</td>'
        body += "</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def table(rows: list[Row], name: str = "") -> str:
    """The rows as an HTML table that can be sorted, key columns first; rates with their intervals in one cell."""
    if not rows:
        return "<p>Nothing to show yet.</p>"
    if len(rows) > MAX_TABLE_ROWS:
        return f'<p>{len(rows)} rows: <a href="{name}.csv">{name}.csv</a></p>'
    rows = [spread(row) for row in rows]
    found = columns_of(rows)
    columns = [name for name in KEY_COLUMNS if name in found] + [n for n in found if n not in KEY_COLUMNS]
    head = "".join(f'<th><button type="button">{html.escape(label(name))}</button></th>' for name in columns)
    lines = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in columns)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _cell(value: Any) -> str:
    number = value["value"] if isinstance(value, dict) else value
    sortable = f' data-value="{number}"' if isinstance(number, (int, float)) else ""
    return f"<td{sortable}>{html.escape(shown(value))}</td>"


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>DiffMark evaluation</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,"><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1rem;color:#222;background:#fff}
nav{display:flex;flex-wrap:wrap;gap:.3rem 1rem;font-size:.9rem}section{margin-top:2.5rem;border-top:1px solid #ddd}
img{max-width:100%;height:auto}figure{margin:1rem 0;overflow-x:auto}figcaption{font-size:.85rem;color:#555}
.wide{overflow-x:auto;max-height:40rem}table{border-collapse:collapse;font-size:.82rem}
td:first-child,th:first-child{position:sticky;left:0;background:#fff}
thead th:first-child{background:#f4f4f4;z-index:1}
.best{font-weight:700}td,th{padding:.2rem .6rem;border-bottom:1px solid #e4e4e4;text-align:left;white-space:nowrap}
th{position:sticky;top:0;background:#f4f4f4}th button{all:unset;cursor:pointer;font-weight:600}
th button:focus-visible{outline:2px solid #1f5fa8}th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}summary{cursor:pointer;margin:.4rem 0}
pre{font-size:.75rem;background:#f4f4f4;padding:.5rem;overflow-x:auto}code{overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{background:#16181c;color:#e4e4e4}img{background:#fff}
td:first-child,th:first-child{background:#16181c}
th,thead th:first-child,pre{background:#24272d}td,th,section{border-color:#333}a{color:#7ab0ff}}
@media(max-width:40rem){figure img{max-width:none;width:40rem}
body{padding:.6rem}h1{font-size:1.5rem}}</style></head><body>
<h1>DiffMark evaluation</h1>
<p>Brackets are exact 95% intervals. Exact thresholds come from the binomial law of matching bits, or from a
method's own test; beside them the share of unmarked images that pass. Empirical ones come from unmarked images;
an empty cell was not measured, or there were too few unmarked images for it. A click on a column's head sorts.
Every part can be made again with the command under it.</p>
<nav>{{links}}</nav>
{{parts}}
<script>
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], place = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = row => { const cell = row.cells[place]; return cell.dataset.value ?? cell.textContent; };
  const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : String(a).localeCompare(b);
  const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b)));
  body.append(...rows);
});
</script></body></html>
"""
