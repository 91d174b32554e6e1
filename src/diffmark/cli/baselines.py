"""`diffmark baselines`: train and measure the methods that DiffMark is compared with."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.opening import Commands
from diffmark.cli.vista import Config, Photos, Stop

app = Commands(help="Train and measure the methods to compare with.", no_args_is_help=True)


class Trained(str, Enum):
    """Baselines that have weights."""

    stegastamp = "stegastamp"
    stable_signature = "stable-signature"
    aqualora = "aqualora"


@app.command()
def train(
    name: Annotated[Trained, typer.Argument(help="Method to train.")],
    config: Config,
    runs: Annotated[Path, typer.Option(help="Folder for states, logs and caches.")] = Path("runs/baselines"),
    photos: Photos = None,
    stop: Stop = None,
) -> None:
    """Train a baseline on the embedded family; a run that was stopped goes on.

    `diffmark vista bundle` then writes its `model` folder in half precision.
    """
    from diffmark.baselines.training import train_baseline

    if train_baseline(name.value, config, runs / name.value, photos, stop):
        typer.echo(runs / name.value / "model")
    else:
        typer.echo("not finished: the same command goes on")


@app.command()
def measure(
    name: Annotated[Trained, typer.Argument(help="Method to measure.")],
    count: Annotated[int, typer.Option(help="Number of unseen scenes.", min=1)] = 50,
    out: Annotated[Path | None, typer.Option(help="JSON to write.")] = None,
) -> None:
    """Mark unseen scenes, distort them, read them back; prints a line a row."""
    import json

    from diffmark.evaluation.baselines import measure_baseline
    from diffmark.provenance import provenance

    rows = measure_baseline(name.value, count)
    for row in rows:
        typer.echo(json.dumps(row))
    if out:
        document = provenance(f"diffmark baselines measure {name.value}", {"count": count}) | {"rows": rows}
        out.write_text(json.dumps(document, indent=1) + "\n")
