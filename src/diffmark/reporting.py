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
OPTIONAL = ("fingerprint",)
RATE = "0.001"  # that verdicts are given at unless somebody asks for another
LIMITS = {
    "eu-code": (
        "A mark is evidence, not proof: whoever holds the operator key can write one.",
        "No mark found does not prove that an image was not generated: the table says when it is lost.",
        "Pictures are photographs and images of Stable Diffusion 1.4, some hundred. Other kinds may differ.",
        "Regeneration by a model, strong blur and small crops remove the mark of the pixel layer.",
        "These are the rates of the pixel layer. Those of the generation layer are in docs/results.md.",
        "Look-up by fingerprint is a weaker basis and never stands alone.",
    ),
    "sb942": (
        "The tool reads marks of the operator's keys alone; it says nothing of other providers' images.",
        "Metadata are reported as the file declares them; anybody can add or remove them unless they are signed.",
        "The tool keeps no image and names no account; feedback is kept without the sender's address.",
        "A latent disclosure is lost with the mark and the metadata: the table says how often.",
        "Pictures are photographs and images of Stable Diffusion 1.4, some hundred. Other kinds may differ.",
        "These are the rates of the pixel layer. Those of the generation layer are in docs/results.md.",
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
            "unmarked_kinds": {kind: value["pictures"] for kind, value in negatives["by_kind"].items()},
            "calibrated_on": negatives["calibrated_on"],
            "other_versions": _other_versions(found),
        },
        "false_positives": [
            {"stated_rate": float(rate), **value}
            for rate, value in negatives["false_positives"].items()
            if isinstance(value, dict)
        ],
        "false_positives_by_kind": {kind: value[RATE] for kind, value in negatives["by_kind"].items()},
        "detection": [{"attack": name, **cell} for name, cell in robustness["cells"].items()],
        "visibility": robustness["visibility"],
        "limits": list(LIMITS[purpose]),
    }
    if "fingerprint" in found:
        chosen, test = found["fingerprint"]["chosen"], found["fingerprint"]["test"]
        report["fingerprint"] = {"method": chosen["method"], "threshold": chosen["threshold"]}
        report["fingerprint"] |= {"recall": test["recall"], "false_lookups": test["false"]}
        report["fingerprint"] |= {"false_lookups_after_attacks": test["false_after_attacks"]}
    return report


def _other_versions(found: dict[str, Any]) -> dict[str, str]:
    """Results that another version was measured for: they may not hold for this one."""
    versions = {name: str(document["versions"]["diffmark"]) for name, document in found.items()}
    return {name: version for name, version in versions.items() if version != __version__}


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
    kinds = [
        [
            kind,
            f"{value['passed']:,} of {report['data']['unmarked_kinds'][kind]:,}",
            _interval(value["interval_95"]),
        ]
        for kind, value in report["false_positives_by_kind"].items()
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
    visibility = [
        [MEASURES.get(name, name), STATISTICS.get(key, key), f"{number:.3g}"]
        for name, values in report["visibility"].items()
        for key, number in values.items()
    ]
    limits = "".join(f"<li>{html.escape(text)}</li>" for text in report["limits"])
    likeness = ""
    if kept := report.get("fingerprint"):
        plain, attacked = kept["false_lookups"], kept["false_lookups_after_attacks"]
        likeness = (
            f"<h2>Look-up by fingerprint</h2><p>{html.escape(kept['method'])}, at most {kept['threshold']} of 256 "
            f"bits: recall {kept['recall']:.2f} over all attacks. False look-ups among a million others: "
            f"{_false(plain)} of other pictures as they are, {_false(attacked)} of attacked ones.</p>"
        )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(report['title'])}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{html.escape(report['title'])}</h1>"
        f"<p>DiffMark {html.escape(report['diffmark'])}, {html.escape(report['made'])}, from measured results.</p>"
        f"<h2>Data</h2><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in _data(report['data']))}</ul>"
        f"<h2>Unmarked pictures that are called marked</h2>"
        f"{_table(['Stated rate', 'Called marked', 'Measured rate', '95% interval'], positives)}"
        f"{_table(['Kind', f'Called marked at {RATE}', '95% interval'], kinds)}"
        f"<h2>Marked pictures that are found, at a false-positive rate of 1e-6</h2>"
        f"{_table(['After', 'Bits right', 'Found', '95% interval', 'Pictures'], cells)}"
        f"<h2>Visibility</h2>{_table(['Measure', 'Over the pictures', 'Value'], visibility)}{likeness}"
        f"<h2>Limits</h2><ul>{limits}</ul>"
        f"<h2>How it was measured</h2>{_table(['Result', 'Command', 'Revision'], sources)}"
        "</main></body></html>\n"
    )


MEASURES = {
    "ssimulacra2": "SSIMULACRA2 (90 cannot be told from the original, 70 is high quality)",
    "butteraugli_3": "Butteraugli, 3-norm (lower is better)",
    "psnr": "PSNR, dB",
}
STATISTICS = {"percentile_5": "5th percentile", "percentile_95": "95th percentile"}
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


def _data(data: dict[str, Any]) -> list[str]:
    """What was measured on, in sentences."""
    lines = [
        f"Unmarked: {data['unmarked_pictures']:,} pictures of {len(data['unmarked_kinds'])} kinds. Verdicts were "
        f"calibrated on {data['calibrated_on']:,} others.",
        f"Marked: {data['robustness_pictures']} photographs and generated images, 512 pixels a side. Costly "
        "attacks are on the first few of them; each row says how many.",
    ]
    if data["other_versions"]:
        older = ", ".join(f"{name} of {version}" for name, version in data["other_versions"].items())
        lines.append(f"Not measured for this version but for another one: {older}.")
    return lines


def _false(counts: list[float]) -> str:
    false, of, low, high = counts
    return f"{false:,} of {of:,} (95% interval {low:g} to {high:g})"


def _interval(bounds: list[float]) -> str:
    return f"{bounds[0]:.2g} to {bounds[1]:.2g}"
