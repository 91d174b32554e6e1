"""`diffmark evaluate`: the paper's tables on the embedded model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.evaluation.names import EXPERIMENTS, check_experiments, check_methods


def evaluate(
    experiments: Annotated[
        list[str],
        typer.Argument(help=f"Names, or all: {', '.join(EXPERIMENTS)}."),
    ],
    methods: Annotated[
        str,
        typer.Option(
            help="Names with commas, or all: diffmark (generation layer), diffmark-pixel, diffmark-both, and "
            "what else is installed; module:Class for your own."
        ),
    ] = "diffmark",
    attacks: Annotated[
        str | None,
        typer.Option(help="Names with commas; all by default. module:NAME is your own."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="An embedded model, a pipeline's folder, or a hub id.")
    ] = "vista",
    codec: Annotated[str, typer.Option(help="A codec's name, folder, or hub id.")] = "vista",
    siblings: Annotated[
        str | None,
        typer.Option(help="Other models of the family, with commas; all embedded ones if the model is."),
    ] = None,
    surrogate: Annotated[
        str | None, typer.Option(help="Model for regeneration by diffusion; the first sibling by default.")
    ] = None,
    photographs: Annotated[
        Path | None,
        typer.Option(
            help="Folder of photographs to use as negatives; Debian's wallpapers and scikit-image's by default.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    training: Annotated[
        Path | None, typer.Option(help="Folder of the codec's training run, for its progression.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 50,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance, diffusers' scale; 7.5, or 4 for the embedded models.")
    ] = None,
    compile_unet: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the UNet first, which takes a minute: for hundreds of images."
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="Stop after so long, shared by the experiments; the same command goes on from there."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few images: minutes instead of hours.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what is left to do and how long it takes; do nothing.")
    ] = False,
    cache: Annotated[
        Path, typer.Option(help="Where pictures, readings and times are kept between runs.")
    ] = Path("runs/pictures"),
    out: Annotated[Path, typer.Option(help="Folder for JSON, CSV, figures and the report.")] = Path(
        "runs/evaluation"
    ),
) -> None:
    """Compare methods on one model in one run.

    A run that was stopped goes on where it was.
    """
    names = list(EXPERIMENTS) if experiments == ["all"] else experiments
    check_experiments(names)
    check_methods(methods)

    from diffmark.evaluation.choice import (
        choose_attacks,
        few_steps,
        load_attacks,
        load_methods,
        load_siblings,
        quiet_pipeline,
    )
    from diffmark.evaluation.harness import Extent, Harness
    from diffmark.evaluation.image_model import ImageModel
    from diffmark.evaluation.report import write_report
    from diffmark.evaluation.results import count_work, run
    from diffmark.evaluation.timing import Costs, WorkTimer
    from diffmark.mark.generation import Sampling
    from diffmark.mark.loading import default_guidance
    from diffmark.provenance import command_line, provenance

    pipe = quiet_pipeline(model)
    if compile_unet:
        pipe.unet.compile()
    sampling = Sampling(steps, guidance or default_guidance(model))
    others = {
        name: ImageModel(cache, other, name, few_steps(other, sampling))
        for name, other in load_siblings(siblings, model).items()
    }
    harness = Harness(
        ImageModel(cache, pipe, model, sampling),
        load_methods(methods, pipe, codec, sampling),
        Extent.quick() if quick else Extent(),
        photographs,
        siblings=others,
        training=training,
    )
    harness.attacks = choose_attacks(load_attacks(harness, surrogate), attacks)
    costs, seconds = Costs(cache / "times.json"), None if minutes is None else 60 * minutes
    if estimate or seconds is None:  # counting takes a while itself: a run with a budget does without
        counts = count_work(names, harness)
        show_estimate(counts, costs)
        if estimate:
            return
        seconds = sum(count * costs.each(what) for work in counts.values() for what, count in work.items())
    timer = WorkTimer(costs, seconds)
    for each in (harness.model, *others.values()):
        each.timer = timer
    from_start = provenance(command_line(), {})
    work_until(harness, names, minutes)
    for name in names:
        rows = run(name, harness, out, from_start)
        timer.bar.write(f"{name}: {len(rows)} rows in {out / name}.json", file=sys.stdout)
    timer.close()
    show_tables(out, names)
    typer.echo(f"report: {write_report(out)}")


def work_until(harness: Any, names: list[str], minutes: float | None) -> None:
    """Each experiment's share of the time; what is left out then is made by the next run."""
    import time

    from diffmark.evaluation.experiments import EXPERIMENTS

    if minutes is None:
        return
    begun = time.monotonic()
    for number, name in enumerate(names, start=1):
        harness.deadline = begun + 60 * minutes * number / len(names)
        harness.timer.bar.set_description(name)
        for _ in EXPERIMENTS[name](harness):
            pass
        harness.timer.costs.save()


def show_tables(folder: Path, names: list[str]) -> None:
    """The main tables in the terminal."""
    import json

    from rich.console import Console

    from diffmark.evaluation.summary import terminal_tables

    documents = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    console = Console(width=None if sys.stdout.isatty() else 140)
    for part in terminal_tables(documents):
        console.print(part)


def show_estimate(counts: Any, costs: Any) -> None:
    """A line an experiment, from times that earlier runs measured."""
    from diffmark.evaluation.timing import estimate

    rows = estimate(counts, costs)
    for row in rows:
        mostly = f"mostly {row['mostly']} at {row['seconds_each']:g} s" if "mostly" in row else ""
        typer.echo(f"{row['experiment']:16} {row['cpu_hours']:8.2f} CPU hours  {mostly}")
    typer.echo(f"{'all':16} {sum(row['cpu_hours'] for row in rows):8.2f} CPU hours")
    unknown = sorted({what for row in rows for what in row["never_timed"]})
    if unknown:
        typer.echo(f"never timed here, taken as 0.1 s: {', '.join(unknown)}; run with --quick first")
