"""`diffmark baselines`: train the methods that DiffMark is compared with."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.vista import Config, Photos, Stop

app = typer.Typer(help="The methods that DiffMark is compared with: train them.", no_args_is_help=True)


class Trained(str, Enum):
    """Baselines that have weights."""

    stegastamp = "stegastamp"
    stable_signature = "stable-signature"
    aqualora = "aqualora"


@app.callback()
def main() -> None:
    """Keeps `train` a command of its own, as it is the only one."""


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
    from diffmark.methods.training import train_baseline

    if train_baseline(name.value, config, runs / name.value, photos, stop):
        typer.echo(runs / name.value / "model")
    else:
        typer.echo("not finished: the same command goes on")
