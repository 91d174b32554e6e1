"""Documentation of testing, as codes of practice ask for it, from the measured results and nothing else."""

from __future__ import annotations

import html
import json
import time
from pathlib import Path
from typing import Any

from diffmark import __version__

PURPOSES = {
    "eu-code": "EU AI Act, Article 50(2), and its Code of Practice: documentation of testing",
    "sb942": "California SB 942: documentation of the detection tool and the latent disclosure",
}
NEEDED = ("pixel_robustness", "pixel_negatives")
OPTIONAL = ("fingerprint", "service_load")
LIMITS = {
    "eu-code": (
        "A mark is evidence, not proof: whoever holds the operator key can write one.",
        "No mark found does not prove that an image was not generated: the cells below 1 say when it is lost.",
        "Pictures are photographs and images of Stable Diffusion 1.4, some hundred. Other kinds may differ.",
        "Regeneration by a model, strong blur and small crops remove the mark of the pixel layer.",
        "Look-up by fingerprint is a weaker basis and never stands alone.",
    ),
    "sb942": (
        "The tool reads marks of the operator's keys alone; it says nothing of other providers' images.",
        "Metadata are reported as the file declares them; anybody can add or remove them unless they are signed.",
        "The tool keeps no image and names no account; feedback is kept without the sender's address.",
        "A latent disclosure is lost with the mark and the metadata: the cells below say how often.",
    ),
}


def collect(folder: Path, purpose: str) -> dict[str, Any]:
    """The report as JSON; ValueError names the results that are missing."""
    if purpose not in PURPOSES:
        raise ValueError(f"a report is for {' or '.join(PURPOSES)}, got {purpose!r}")
    missing = [name for name in NEEDED if not (folder / f"{name}.json").is_file()]
    if missing:
        raise ValueError(f"{folder}: no {', '.join(f'{name}.json' for name in missing)}: measure them first")
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in NEEDED}
    found |= {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in OPTIONAL
        if (folder / f"{name}.json").is_file()
    }
    robustness, negatives = found["pixel_robustness"]["results"]["pixel"], found["pixel_negatives"]["results"]
    report: dict[str, Any] = {
        "for": purpose,
        "title": PURPOSES[purpose],
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "diffmark": __version__,
        "sources": {
            name: {key: document.get(key) for key in ("command", "revision", "versions", "config", "seed")}
            for name, document in found.items()
        },
        "data": {
            "robustness_pictures": robustness["pictures"],
            "unmarked_pictures": negatives["reported_on"],
            "calibrated_on": negatives["calibrated_on"],
            "kept_apart": "What was chosen on a set of pictures is not measured on it.",
        },
        "false_positives": [
            {"stated_rate": float(rate), **value}
            for rate, value in negatives["false_positives"].items()
            if isinstance(value, dict)
        ],
        "detection": [{"attack": name, **cell} for name, cell in robustness["cells"].items()],
        "visibility": robustness["visibility"],
        "limits": list(LIMITS[purpose]),
    }
    if "fingerprint" in found:
        chosen, test = found["fingerprint"]["chosen"], found["fingerprint"]["test"]
        report["fingerprint"] = {"method": chosen["method"], "threshold": chosen["threshold"]}
        report["fingerprint"] |= {"recall": test["recall"], "false_lookups": test["false"]}
    return report


def page(report: dict[str, Any]) -> str:
    """The report as one HTML page."""
    positives = [
        [
            f"{row['stated_rate']:g}",
            f"{row['passed']:,} of {report['data']['unmarked_pictures']:,}",
            f"{row['rate']:.2g}",
            _interval(row["interval_95"]),
        ]
        for row in report["false_positives"]
    ]
    cells = [
        [
            row["attack"],
            f"{row['bit_accuracy']:.3f}",
            f"{row['marked']:.2f}",
            _interval(row["interval_95"]),
            str(row["n"]),
        ]
        for row in report["detection"]
    ]
    sources = [
        [name, str(value["command"]), str(value["revision"])] for name, value in report["sources"].items()
    ]
    visibility = ", ".join(
        f"{name} {', '.join(f'{key} {number}' for key, number in values.items())}"
        for name, values in report["visibility"].items()
    )
    limits = "".join(f"<li>{html.escape(text)}</li>" for text in report["limits"])
    likeness = ""
    if kept := report.get("fingerprint"):
        false, of, low, high = kept["false_lookups"]
        likeness = (
            f"<h2>Look-up by fingerprint</h2><p>{kept['method']}, at most {kept['threshold']} of 256 bits: recall "
            f"{kept['recall']:.2f} over all attacks; {false} of {of} look-ups among a million others were false "
            f"(95% interval {low:g} to {high:g}).</p>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(report['title'])}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{html.escape(report['title'])}</h1>"
        f"<p>DiffMark {html.escape(report['diffmark'])}, {html.escape(report['made'])}, from measured results.</p>"
        f"<h2>Unmarked pictures that are called marked</h2>"
        f"{_table(['Stated rate', 'Called marked', 'Measured rate', '95% interval'], positives)}"
        f"<p>{html.escape(report['data']['kept_apart'])} The calibration is of "
        f"{report['data']['calibrated_on']:,} other pictures.</p>"
        f"<h2>Marked pictures that are found, at a false-positive rate of 1e-6</h2>"
        f"{_table(['After', 'Bits right', 'Found', '95% interval', 'Pictures'], cells)}"
        f"<h2>Visibility</h2><p>{html.escape(visibility)}</p>{likeness}"
        f"<h2>Limits</h2><ul>{limits}</ul>"
        f"<h2>How it was measured</h2>{_table(['Result', 'Command', 'Revision'], sources)}"
        "</main></body></html>\n"
    )


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
div { overflow-x: auto; } th, td { text-align: left; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid #8886; }
@media print { :root { color-scheme: light; } }
"""


def _table(head: list[str], rows: list[list[str]]) -> str:
    top = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div tabindex="0" role="region" aria-label="{html.escape(head[0])}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _interval(bounds: list[float]) -> str:
    return f"{bounds[0]:.2g} to {bounds[1]:.2g}"
