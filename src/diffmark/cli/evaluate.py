"""`diffmark evaluate`: the paper's tables on the embedded model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

CLASSIC = ("dwtDct", "dwtDctSvd", "rivaGan", "blindWatermark")
SAMPLING = ("tree-ring", "ring-id", "shallow-diffuse", "gaussian-shading", "prc")
TRAINED = ("stegastamp", "stable-signature", "aqualora")
EXPERIMENTS = (
    "clean",
    "false_positives",
    "robustness",
    "strength",
    "keys",
    "transfer",
    "latency",
    "identification",
    "averaging",
    "collusion",
    "forgery",
    "signal",
    "ablations",
)
LAYERS = ("diffmark", "diffmark-pixel", "diffmark-both")


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
    """Measure methods on one model in one run; a run that was stopped goes on where it was."""
    if unknown := set(experiments) - {"all", *EXPERIMENTS}:
        raise ValueError(f"no experiment {min(unknown)!r}; there are {', '.join(EXPERIMENTS)}")
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
    names = list(EXPERIMENTS) if experiments == ["all"] else experiments
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


def quiet_pipeline(model: str) -> Any:
    """A pipeline that leaves the progress bar to the evaluation."""
    from diffmark.mark.loading import load_pipeline

    pipe = load_pipeline(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def few_steps(pipe: Any, sampling: Any) -> Any:
    """Four steps for a consistency model, whatever the others take."""
    from dataclasses import replace

    return replace(sampling, steps=4) if type(pipe.scheduler).__name__ == "LCMScheduler" else sampling


def load_siblings(names: str | None, model: str) -> dict[str, Any]:
    """Other models of the family by name."""
    from diffmark.mark.loading import is_embedded
    from diffmark.vista import model_names

    if names is None:
        chosen = [name for name in model_names() if name != model] if is_embedded(model) else []
    else:
        chosen = [name for name in names.split(",") if name]
    return {name: quiet_pipeline(name) for name in chosen}


def load_attacks(harness: Any, surrogate: str | None) -> list[Any]:
    """Attacks that use a model: regeneration by compression and by a surrogate, gradients."""
    from diffmark.attacks.adversarial import against_features, against_margins, against_vae
    from diffmark.attacks.regeneration import compression_attack, diffusion_attacks

    attacks = [compression_attack()]
    pipes = {name: model.pipe for name, model in harness.siblings.items()}
    pipes = {name: pipe for name, pipe in pipes.items() if type(pipe.scheduler).__name__ != "LCMScheduler"}
    if surrogate is not None:
        pipes = {surrogate: pipes.get(surrogate) or quiet_pipeline(surrogate)}
    if pipes:
        name = next(iter(pipes))
        attacks += diffusion_attacks(pipes[name], name)
    else:
        typer.echo(
            "regen_diffusion and rinse_2x are left out: no other model of the family; name a --surrogate",
            err=True,
        )
    backbone = harness.backbone
    attacks += [against_margins(method) for method in harness.methods if method.has_gradients]
    return [
        *attacks,
        against_vae(harness.model.pipe.vae),
        against_features(backbone.pooled, backbone.name, backbone.weights),
    ]


def choose_attacks(with_models: list[Any], names: str | None) -> dict[str, Any]:
    """Attacks of the package, of installed plug-ins and by place; only those that are named, if any are."""
    from diffmark.attacks import ATTACKS
    from diffmark.evaluation import plugins

    listed = [*ATTACKS.values(), *with_models]
    for name, point in plugins.offered(plugins.ATTACKS).items():
        listed += plugins.as_attacks(point.load(), name)
    wanted = names.split(",") if names else []
    named = [name for name in wanted if ":" not in name]
    for place in (name for name in wanted if ":" in name):
        own = plugins.as_attacks(plugins.load_object(place), place)
        listed += own
        named += [attack.name for attack in own]
    known = dict.fromkeys(attack.name for attack in listed)
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ValueError(f"no attack {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [attack for attack in listed if not named or attack.name in named]
    return {f"{attack.name} {attack.against or ''}".strip(): attack for attack in chosen}


def load_methods(names: str, pipe: Any, codec: str, sampling: Any) -> list[Any]:
    """Methods by name; `diffmark` with the codec's own injection, `diffmark-late` and so on with another."""
    from diffmark.baselines.aqualora import AquaLora
    from diffmark.baselines.classic import BlindWatermark, InvisibleWatermark
    from diffmark.baselines.diffmark import DiffMark
    from diffmark.baselines.gaussian_shading import GaussianShading
    from diffmark.baselines.layers import BothLayers, PixelLayer
    from diffmark.baselines.prc import PseudorandomCode
    from diffmark.baselines.ring_id import RingID
    from diffmark.baselines.shallow_diffuse import ShallowDiffuse
    from diffmark.baselines.stable_signature import StableSignature
    from diffmark.baselines.stegastamp import StegaStamp
    from diffmark.baselines.tree_ring import TreeRing
    from diffmark.detection.latent import Detector
    from diffmark.evaluation import plugins

    detector = Detector.from_pretrained(codec)
    chosen: list[Any] = []
    classes = (TreeRing, RingID, ShallowDiffuse, GaussianShading, PseudorandomCode, StableSignature, AquaLora)
    on_pipe: dict[str, Any] = {method.name: method for method in classes}
    extra = plugins.offered(plugins.METHODS)
    rivals = (*SAMPLING, *TRAINED, *CLASSIC, *extra)

    def load(name: str) -> Any:
        if ":" in name:
            return plugins.make_method(plugins.load_object(name), pipe, sampling, name)
        if name in extra:
            return plugins.make_method(extra[name].load(), pipe, sampling, name)
        if name == "diffmark-both":
            return BothLayers(DiffMark(pipe, detector, sampling))
        if name.startswith("diffmark-pixel"):
            return PixelLayer(quality=float(name.partition("@")[2]) if "@" in name else None)
        if name == "diffmark" or name.startswith("diffmark-"):
            mode = name.removeprefix("diffmark").removeprefix("-")
            injection = detector.codec.dosing.in_mode(mode) if mode else None
            return DiffMark(pipe, detector, sampling, injection)
        if name in on_pipe:
            return on_pipe[name](pipe, sampling)
        if name == StegaStamp.name:
            return StegaStamp()
        if name in CLASSIC:
            return BlindWatermark() if name == "blindWatermark" else InvisibleWatermark(name)
        known = ", ".join(
            (*LAYERS, "diffmark-<mode>", "diffmark-pixel@<SSIMULACRA2>", *rivals, "module:Class")
        )
        raise ValueError(f"no method {name!r}; there are {known}")

    if names != "all":
        return [load(name) for name in names.split(",")]
    for name in (*LAYERS, *rivals):
        try:
            chosen.append(load(name))
        except (ImportError, FileNotFoundError) as error:
            typer.echo(f"{name} is left out: {error}", err=True)
    return chosen
