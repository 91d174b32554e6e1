"""`diffmark evaluate`: the paper's tables on the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

CLASSIC = ("dwtDct", "dwtDctSvd", "rivaGan", "blindWatermark")
SAMPLING = ("tree-ring", "ring-id", "shallow-diffuse")


def evaluate(
    experiments: Annotated[
        list[str], typer.Argument(help="clean, robustness, keys, transfer, latency, averaging, or all.")
    ],
    methods: Annotated[
        str, typer.Option(help="Names with commas, or all: diffmark and what else is installed.")
    ] = "diffmark",
    model: Annotated[
        str, typer.Option(help="An embedded model, a pipeline's folder, or a hub id.")
    ] = "vista",
    codec: Annotated[str, typer.Option(help="A codec's name, folder, or hub id.")] = "vista",
    surrogate: Annotated[
        str | None, typer.Option(help="Model for regeneration attacks; not the one that makes the images.")
    ] = None,
    photographs: Annotated[
        Path | None, typer.Option(help="Folder of photographs to use as negatives.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Denoising steps.")] = 50,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance, diffusers' scale; 7.5, or 4 for the embedded models.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few images: minutes instead of hours.")] = False,
    cache: Annotated[Path, typer.Option(help="Where pictures are kept between runs.")] = Path(
        "runs/pictures"
    ),
    out: Annotated[Path, typer.Option(help="Folder for JSON, CSV, figures and the report.")] = Path(
        "runs/evaluation"
    ),
) -> None:
    """Measure methods on one model in one run."""
    from diffmark.evaluation.experiments import EXPERIMENTS
    from diffmark.evaluation.lab import Extent, Lab
    from diffmark.evaluation.report import write_report
    from diffmark.evaluation.results import run
    from diffmark.evaluation.studio import Studio
    from diffmark.generation import Sampling
    from diffmark.pipelines import default_guidance, load_pipeline

    pipe = load_pipeline(model)
    pipe.set_progress_bar_config(disable=True)
    sampling = Sampling(steps, guidance or default_guidance(model))
    studio = Studio(cache, pipe, model, sampling)
    extent = Extent.quick() if quick else Extent()
    lab = Lab(studio, load_methods(methods, pipe, codec, sampling), extent, photographs)
    lab.attacks |= {attack.name: attack for attack in load_attacks(pipe, surrogate)}
    for name in EXPERIMENTS if experiments == ["all"] else experiments:
        rows = run(name, lab, out)
        typer.echo(f"{name}: {len(rows)} rows in {out / name}.json")
    typer.echo(f"report: {write_report(out)}")


def load_attacks(pipe: Any, surrogate: str | None) -> list[Any]:
    """Attacks that use a model: gradients against the vae, regeneration by a surrogate if one is named."""
    from diffmark.attacks.adversarial import adversarial_attacks
    from diffmark.attacks.regeneration import regeneration_attacks
    from diffmark.pipelines import load_pipeline

    attacks = list(adversarial_attacks(pipe.vae))
    return attacks if surrogate is None else attacks + list(regeneration_attacks(load_pipeline(surrogate)))


def load_methods(names: str, pipe: Any, codec: str, sampling: Any) -> list[Any]:
    """Methods by name; `diffmark` with the codec's own injection, `diffmark-late` and so on with another."""
    from diffmark.detection import Detector
    from diffmark.injection import Injection
    from diffmark.methods.classic import BlindWatermark, InvisibleWatermark
    from diffmark.methods.diffmark import DiffMark
    from diffmark.methods.ring_id import RingID
    from diffmark.methods.shallow_diffuse import ShallowDiffuse
    from diffmark.methods.tree_ring import TreeRing

    detector = Detector.from_pretrained(codec)
    chosen: list[Any] = []
    by_inversion = {method.name: method for method in (TreeRing, RingID, ShallowDiffuse)}
    for name in ("diffmark", *SAMPLING, *CLASSIC) if names == "all" else names.split(","):
        if name == "diffmark" or name.startswith("diffmark-"):
            mode = name.removeprefix("diffmark").removeprefix("-")
            chosen.append(DiffMark(pipe, detector, sampling, Injection(mode) if mode else None))
        elif name in by_inversion:
            chosen.append(by_inversion[name](pipe, sampling))
        elif name in CLASSIC:
            chosen.append(BlindWatermark() if name == "blindWatermark" else InvisibleWatermark(name))
        else:
            known = ", ".join(("diffmark", "diffmark-<mode>", *SAMPLING, *CLASSIC))
            raise ValueError(f"no method {name!r}; there are {known}")
    return chosen
