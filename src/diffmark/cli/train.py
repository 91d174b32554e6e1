"""`diffmark train`: train a codec for a latent space, and look at the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train a codec for a latent space, and look at the run.", no_args_is_help=True)

Config = Annotated[Path, typer.Option(help="The run file, see configs/.")]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder, runs/NAME by default; a run that is there is resumed.")
]
Start = Annotated[str | None, typer.Option("--codec", help="A codec to start from: name, folder or hub id.")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Leave a GPU alone.")]
Cache = Annotated[Path, typer.Option(help="Folder for painted scenes and latents.")]

Teacher = Annotated[
    str,
    typer.Option(
        help="Autoencoder: a folder, a hub id, or STEM of STEM_encoder.safetensors and STEM_decoder."
    ),
]
Photographs = Annotated[Path, typer.Option(help="Folder of images; every fifth of a folder is held out.")]


@app.command()
def pretrain(
    config: Config, out: Out = None, codec: Start = None, cache: Cache = Path("runs/cache"), cpu: Cpu = False
) -> None:
    """Pretrain encoder and decoder without a diffusion model (the paper's Algorithm 1)."""
    from diffmark.codec import Codec
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
    from diffmark.codec import Codec
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
def distil(
    config: Config,
    vae: Teacher,
    pictures: Photographs,
    out: Out = None,
    start: Annotated[Path | None, typer.Option(help="A patch autoencoder to start from, by folder.")] = None,
    cache: Cache = Path("runs/cache"),
) -> None:
    """Distil a small autoencoder for the latent space of a larger one; a run that is there is resumed."""
    from diffmark.training.distillation import DistillationConfig
    from diffmark.training.distillation import distil as run
    from diffmark.training.tiny import open_autoencoder
    from diffmark.vae import load_vae
    from diffmark.vista.training.config import read_config

    out = out or Path("runs") / config.stem
    settings = read_config(config, DistillationConfig)
    run(settings, open_autoencoder(vae), pictures, out, cache, load_vae(start) if start else None)
    typer.echo(out / "model")


@app.command()
def family(
    config: Config,
    vae: Teacher,
    pictures: Photographs,
    own: Annotated[
        Path | None,
        typer.Option(help="Folder of the small autoencoder (train distil); trained against as well."),
    ] = None,
    out: Out = None,
    codec: Start = None,
    cache: Cache = Path("runs/cache"),
    stages: Annotated[
        list[str] | None, typer.Option("--stage", help="channel or round_trip; both in turn by default.")
    ] = None,
) -> None:
    """Train a codec for a real latent space with its autoencoder alone: channel stage, then round trips."""
    from diffmark.codec import Codec
    from diffmark.training.family import STAGES, read_family_config, record, train_stage
    from diffmark.training.ground import prepare_ground
    from diffmark.training.measurement import write_result
    from diffmark.training.tiny import open_autoencoder
    from diffmark.vae import load_vae

    out = out or Path("runs") / config.stem
    settings = read_family_config(config)
    others = [load_vae(own).float()] if own else []
    ground = prepare_ground(settings, pictures, open_autoencoder(vae), others, cache)
    trained = Codec.from_pretrained(codec) if codec else None
    for stage in stages or STAGES:
        trained = train_stage(stage, settings, ground, out / stage, trained)
        write_result(out / stage / "result.json", record(out / stage), settings, settings.seed)
        typer.echo(f"{out / stage / 'best'}  {trained.provenance}")


@app.command("pixel-decoder")
def pixel_decoder(
    config: Config,
    codec: Annotated[str, typer.Option(help="A codec that comes with an autoencoder: name or folder.")],
    pictures: Photographs,
    out: Out = None,
) -> None:
    """Train the network that reads a codec's secrets without an autoencoder; a run that is there is resumed."""
    import numpy as np

    from diffmark.detection import Detector
    from diffmark.training.photographs import split_photographs
    from diffmark.training.pixel_decoder import PixelDecoderConfig, make_examples, train_pixel_decoder
    from diffmark.vista.training.config import read_config

    out = out or Path("runs") / config.stem
    settings = read_config(config, PixelDecoderConfig)
    detector = Detector.from_pretrained(codec)
    paths = split_photographs(pictures, settings.every).train
    order = np.random.default_rng(settings.loop.seed).permutation(len(paths))[: settings.pictures]
    examples = make_examples(detector.codec, detector.vae, [paths[i] for i in order], settings.loop.seed)
    train_pixel_decoder(settings, detector.codec, examples, out)
    typer.echo(out)


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


@app.command("measure-family")
def measure_family(
    codec: Annotated[str, typer.Argument(help="The codec: name, folder or hub id.")],
    config: Config,
    pictures: Photographs,
    out: Annotated[Path, typer.Option(help="The JSON to write.")],
    own: Annotated[Path, typer.Option(help="Folder of the small autoencoder that ships with the codec.")],
    vae: Annotated[
        str | None, typer.Option(help="The teacher, for same-seed figures; see train family.")
    ] = None,
    marked: Annotated[int, typer.Option(min=2, help="Photographs that are marked.")] = 100,
    same_seed: Annotated[int, typer.Option(min=0, help="Of them through the teacher, which is slow.")] = 32,
    generated: Annotated[
        int | None,
        typer.Option(min=1, help="Of these at other sizes; a quarter of them by default."),
    ] = None,
    negatives: Annotated[int, typer.Option(min=20, help="Unmarked crops, one of ten sharp.")] = 10_000,
    deviation: Annotated[float | None, typer.Option(help="Strength: delta's standard deviation.")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Write codec and autoencoder here, in half precision.")
    ] = None,
    cache: Annotated[
        Path,
        typer.Option(help="Folder for pictures and readings: a measurement that was stopped goes on there."),
    ] = Path("runs/cache/family"),
    seed: Annotated[int, typer.Option(min=0, help="Of secrets and attacks.")] = 0,
) -> None:
    """Measure a family's codec on held-out photographs, calibrate it, and publish it."""
    from diffmark.codec_files import PIXEL_FILE, find_codec
    from diffmark.evaluation.memory import Memory
    from diffmark.fast import load_pixel_decoder
    from diffmark.training.family import read_family_config
    from diffmark.training.family_measurement import measure_family as run
    from diffmark.training.family_publication import load_half, publish_family, training_of
    from diffmark.training.measurement import write_result
    from diffmark.training.photographs import split_photographs
    from diffmark.training.tiny import open_autoencoder

    settings = read_family_config(config)
    loaded, autoencoder = load_half(codec, own, deviation)
    split = split_photographs(pictures, settings.every)
    teacher = open_autoencoder(vae) if vae else None
    pixel_decoder = load_pixel_decoder(codec) if (find_codec(codec) / PIXEL_FILE).is_file() else None
    found, calibrated = run(
        loaded,
        autoencoder,
        teacher,
        split.held_out,
        marked,
        same_seed,
        negatives,
        Memory(cache),
        seed,
        generated,
        pixel_decoder,
    )
    found |= {"trained_on": len(split.train), **training_of(own)}
    write_result(out, found, settings, seed)
    if publish:
        publish_family(calibrated, autoencoder, publish, found, pixel_decoder)
    typer.echo(out)
