"""`diffmark report`: documentation of testing from measured results."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Purpose(str, Enum):
    """What a report is for."""

    eu_code = "eu-code"
    sb942 = "sb942"


def report(
    purpose: Annotated[Purpose, typer.Option("--for", help="What it is for.")],
    results: Annotated[Path, typer.Option(help="Folder of measured results.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for report.html and report.json.")] = Path("report"),
) -> None:
    """Write the documentation of testing.

    Data, attacks, rates with intervals, limits: from results that were measured; nothing is measured here.
    """
    from diffmark.reporting import collect, page

    document = collect(results, purpose.value)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "report.html").write_text(page(document))
    typer.echo(f"{out / 'report.html'}\n{out / 'report.json'}")
