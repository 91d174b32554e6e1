"""`diffmark train`: train a codec for a latent space, and look at the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.opening import Commands

app = Commands(help="Train a codec for a latent space, and look at the run.", no_args_is_help=True)

Config = Annotated[Path, typer.Option(help="The run file, see configs/.", exists=True, dir_okay=False)]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder, runs/NAME by default; a run that is there is resumed.")
]
Start = Annotated[str | None, typer.Option("--codec", help="A codec to start from: name, folder or hub id.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")]
Cache = Annotated[Path, typer.Option(help="Folder for painted scenes and latents.")]


@app.command()
def pretrain(
    config: Config, out: Out = None, codec: Start = None, cache: Cache = Path("runs/cache"), cpu: Cpu = False
) -> None:
    """Pretrain encoder and decoder without a diffusion model (the paper's Algorithm 1)."""
    from diffmark.latent.codec import Codec
    from diffmark.training.config import read_config
    from diffmark.training.optimisation import make_accelerator
    from diffmark.training.preparation import prepare_hosts
    from diffmark.training.pretraining import pretrain as run

    out = out or Path("runs") / f"{config.stem}_pretrain"
    settings = read_config(config)
    accelerator = make_accelerator(settings.optimiser.precision, cpu)
    hosts = prepare_hosts(settings, accelerator.device, cache)
    run(settings, out, hosts, Codec.from_pretrained(codec) if codec else None, accelerator)
    typer.echo(out / "codec")


@app.command()
def dual(
    config: Config, out: Out = None, codec: Start = None, cache: Cache = Path("runs/cache"), cpu: Cpu = False
) -> None:
    """Train through a frozen model: bridge and DDIM path (the paper's Algorithm 2)."""
    from diffmark.latent.codec import Codec
    from diffmark.training.config import read_config
    from diffmark.training.dual import train
    from diffmark.training.optimisation import make_accelerator
    from diffmark.training.preparation import prepare

    out = out or Path("runs") / config.stem
    settings = read_config(config)
    accelerator = make_accelerator(settings.optimiser.precision, cpu)
    material = prepare(settings, accelerator.device, cache)
    start = Codec.from_pretrained(codec) if codec else None
    best = train(settings, out, material.autoencoder, material.paths, start, accelerator)
    typer.echo(f"{out / 'best'}  {best.provenance}")


@app.command()
def noise(
    config: Config,
    out: Out = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Folder of noise and its pictures, OUT/pairs by default.")
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="i/n: only make this part of the pairs, beside other processes.")
    ] = None,
) -> None:
    """Train the reader of a mark in the initial noise: paint from known noise, learn to tell which it was."""
    from diffmark.training.inversion import InversionConfig, make_pairs, train_reader
    from diffmark.training.run_file import read_run_file

    out = out or Path("runs") / config.stem
    settings, pairs = read_run_file(config, InversionConfig), pairs or out / "pairs"
    if share:
        typer.echo(f"{pairs}  {len(make_pairs(settings, pairs, share))} files")
        return
    codec = train_reader(settings, out, pairs)
    typer.echo(f"{out / 'codec'}  {codec.provenance}")


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    out: Annotated[Path | None, typer.Option(help="The picture; RUN/curves.png by default.")] = None,
) -> None:
    """Draw the curves of a run."""
    from diffmark.training.plotting import plot_run

    typer.echo(plot_run(run, out))


@app.command()
def measure(
    codec: Annotated[str, typer.Argument(help="The codec: name, folder or hub id.")],
    config: Config,
    out: Annotated[Path, typer.Option(help="The JSON to write.")],
    marked: Annotated[int, typer.Option(min=1, help="Marked images.")] = 200,
    negatives: Annotated[int, typer.Option(min=20, help="Unmarked images, for the calibration.")] = 2000,
    publish: Annotated[
        Path | None, typer.Option(help="Write the calibrated codec here, in half precision.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Unseen prompts, one a line; for the embedded family its unseen scenes' captions."),
    ] = None,
    injection: Annotated[
        str | None, typer.Option(help="Another injection mode than its own, with the dose it has for it.")
    ] = None,
    cache: Cache = Path("runs/cache"),
    seed: Annotated[int, typer.Option(min=0, help="Of secrets and attacks.")] = 0,
) -> None:
    """Measure a codec on unseen pictures, or prompts where it needs a denoiser, and calibrate it."""
    from diffmark.training.config import read_config
    from diffmark.training.measurement import measure_codec, write_result
    from diffmark.training.paths import read_prompts

    settings = read_config(config)
    found, calibrated = measure_codec(
        codec,
        settings,
        marked,
        negatives,
        seed,
        cache,
        prompts=read_prompts(str(prompts), None) if prompts else None,
        injection=injection,
    )
    write_result(out, found, settings, seed)
    if publish:
        import torch

        calibrated.save_pretrained(publish, dtype=torch.float16)
    typer.echo(out)
