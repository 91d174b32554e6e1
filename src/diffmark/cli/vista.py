"""`diffmark vista`: paint scenes, list, train and measure the embedded models."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from diffmark.cli.opening import Commands

app = Commands(help="The embedded text-to-image family.", no_args_is_help=True)
train_app = Commands(
    help="Train a model of the family; a run that was stopped goes on.", no_args_is_help=True
)
app.add_typer(train_app, name="train")

Config = Annotated[Path, typer.Argument(help="Run file, one of configs/vista/.", exists=True, dir_okay=False)]
Runs = Annotated[Path, typer.Option(help="Folder for states, logs and caches.")]
Photos = Annotated[
    Path | None, typer.Option(help="Folder of photographs to mix in.", exists=True, file_okay=False)
]
Stop = Annotated[int | None, typer.Option(help="Stop after this many steps; the same command goes on later.")]
Base = Annotated[str, typer.Option(help="Name of the model to start from.")]
Name = Annotated[str, typer.Option(help="Model.")]
Steps = Annotated[int | None, typer.Option(help="Denoising steps; 50, or 4 of an LCM.", min=1)]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale; what suits the model.")]
Out = Annotated[Path | None, typer.Option(help="JSON file to write the scores to, with their provenance.")]
RUNS = Path("runs/vista")


@app.command("list")
def list_models() -> None:
    """Name the models there are."""
    from diffmark.vista import model_names

    for name in model_names():
        typer.echo(name)


@app.command()
def paint(
    out: Annotated[Path, typer.Argument(help="Picture to write.")],
    count: Annotated[int, typer.Option(help="Number of scenes.", min=1)] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the first scene.")] = 0,
) -> None:
    """Paint a contact sheet of scenes and print their captions."""
    from PIL import Image

    from diffmark.vista.evaluation import contact_sheet
    from diffmark.vista.paint import paint as paint_scene
    from diffmark.vista.scenes import caption, random_scene

    scenes = [random_scene(seed + i) for i in range(count)]
    Image.fromarray(contact_sheet([paint_scene(scene) for scene in scenes])).save(out)
    for scene in scenes:
        typer.echo(caption(scene))


@app.command()
def sheet(
    out: Annotated[Path, typer.Argument(help="Picture to write.")],
    name: Name = "vista",
    count: Annotated[int, typer.Option(help="Number of pictures.", min=1)] = 24,
    steps: Steps = None,
    guidance: Guidance = None,
) -> None:
    """Generate a contact sheet of the first pictures that `evaluate` measures, and print their prompts."""
    from PIL import Image

    from diffmark.evaluation.image_model import FIRST_SEED, unseen_specs
    from diffmark.mark.loading import default_guidance, default_steps
    from diffmark.vista import load_pipeline
    from diffmark.vista.evaluation import contact_sheet, generate

    prompts = [spec.prompt for spec in unseen_specs(count)]
    steps, guidance = steps or default_steps(name), guidance or default_guidance(name)
    pictures = generate(load_pipeline(name), prompts, steps, guidance, seed=FIRST_SEED)
    Image.fromarray(contact_sheet(list(pictures))).save(out)
    typer.echo("\n".join(prompts))


@app.command()
def evaluate(
    name: Name = "vista",
    count: Annotated[int, typer.Option(help="Number of unseen prompts.", min=2)] = 1000,
    steps: Steps = None,
    guidance: Guidance = None,
    cache: Annotated[
        Path, typer.Option(help="Where pictures are kept; `diffmark evaluate` with the same uses them.")
    ] = Path("runs/pictures"),
    compile_unet: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the UNet first, which takes a minute: for hundreds of images."
        ),
    ] = False,
    out: Out = None,
) -> None:
    """Measure prompt alignment, Frechet distance and the time an image takes; a run that was stopped goes on."""
    import numpy as np
    from tqdm import tqdm

    from diffmark.evaluation.batches import batches
    from diffmark.evaluation.image_model import BATCH, FIRST_SEED, ImageModel, scene_of, unseen_specs
    from diffmark.mark.generation import Sampling
    from diffmark.mark.loading import default_guidance, default_steps
    from diffmark.vista import load_classifier, load_pipeline, model_digest
    from diffmark.vista.evaluation import evaluate_pictures, seconds_per_image

    sampling = Sampling(steps or default_steps(name), guidance or default_guidance(name))
    specs, pipeline = unseen_specs(count), load_pipeline(name)
    pipeline.set_progress_bar_config(disable=True)
    if compile_unet:
        pipeline.unet.compile()
    model = ImageModel(cache, pipeline, name, sampling)
    parts = tqdm(list(batches(specs, BATCH)), "generating", disable=None)
    pictures = [np.asarray(image) for part in parts for image in model.plain(part)]
    scores = evaluate_pictures(pictures, [scene_of(spec) for spec in specs], load_classifier())
    scores["seconds_per_image"] = seconds_per_image(
        load_pipeline(name), specs[0].prompt, sampling.steps, sampling.guidance
    )
    config = {"model": name, "digest": model_digest(name), "count": count, "steps": sampling.steps,
              "guidance": sampling.guidance, "first_seed": FIRST_SEED}  # fmt: skip
    given = {"--steps": steps, "--guidance": guidance}
    more = "".join(f" {option} {value:g}" for option, value in given.items() if value is not None)
    _publish(scores, config, f"evaluate --name {name} --count {count}{more}", out)


@app.command("evaluate-autoencoder")
def evaluate_autoencoder_command(
    runs: Runs = RUNS, photos: Photos = None, count: int = 200, out: Out = None
) -> None:
    """Measure the reconstruction of unseen scenes and of photographs in dB."""
    from diffmark.vista import load_autoencoder
    from diffmark.vista.training.autoencoder import evaluate_autoencoder

    scores = evaluate_autoencoder(load_autoencoder(), runs / "cache", photos, count)
    with_photos = " --photos <folder>" if photos else ""
    _publish(scores, {"count": count}, f"evaluate-autoencoder --count {count}{with_photos}", out)


@app.command("evaluate-compression")
def evaluate_compression_command(runs: Runs = RUNS, photos: Photos = None, count: int = 100) -> None:
    """Measure PSNR and bits a pixel of the compression autoencoder at every quality; prints JSON."""
    from diffmark.provenance import provenance
    from diffmark.vista import load_compression
    from diffmark.vista.training.compression import evaluate_compression

    rows = evaluate_compression(load_compression(), runs / "cache", photos, count)
    config = {"count": count, "photographs": photos is not None}
    typer.echo(
        json.dumps({**provenance("diffmark vista evaluate-compression", config), "rows": rows}, indent=1)
    )


@app.command("evaluate-classifier")
def evaluate_classifier_command(runs: Runs = RUNS, count: int = 1000, out: Out = None) -> None:
    """Measure the classifier on unseen scenes."""
    from diffmark.vista import load_classifier
    from diffmark.vista.training.classifier import evaluate_classifier

    scores = evaluate_classifier(load_classifier(), runs / "cache", count)
    _publish(scores, {"count": count}, f"evaluate-classifier --count {count}", out)


def _publish(scores: dict[str, Any], config: dict[str, Any], command: str, out: Path | None) -> None:
    """Print scores as JSON; with `out` write them there with where they come from."""
    from diffmark.provenance import provenance

    typer.echo(json.dumps(scores))
    if out is not None:
        document = {**provenance(f"diffmark vista {command} --out {out}", config), "scores": scores}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document, indent=1) + "\n")


@train_app.command("autoencoder")
def train_autoencoder_command(
    config: Config, runs: Runs = RUNS, photos: Photos = None, stop: Stop = None
) -> None:
    """Train the autoencoder."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista.training.autoencoder import AutoencoderConfig, train_autoencoder

    train_autoencoder(read_run_file(config, AutoencoderConfig), runs / config.stem, photos, stop)


@train_app.command("decoder")
def train_decoder_command(
    config: Config, base: Base = "vista", runs: Runs = RUNS, photos: Photos = None, stop: Stop = None
) -> None:
    """Train the autoencoder's decoder on, with a refinement stage; the encoder stays as it is."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista import load_pipeline
    from diffmark.vista.training.decoder import DecoderConfig, train_decoder

    run = read_run_file(config, DecoderConfig)
    train_decoder(run, runs / config.stem, load_pipeline(base), photos, stop)


@train_app.command("compression")
def train_compression_command(
    config: Config, runs: Runs = RUNS, photos: Photos = None, stop: Stop = None
) -> None:
    """Train the compression autoencoder for regeneration attacks."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista.training.compression import CompressionConfig, train_compression

    train_compression(read_run_file(config, CompressionConfig), runs / config.stem, photos, stop)


@train_app.command("classifier")
def train_classifier_command(config: Config, runs: Runs = RUNS, stop: Stop = None) -> None:
    """Train the scene classifier."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista.training.classifier import ClassifierConfig, train_classifier

    train_classifier(read_run_file(config, ClassifierConfig), runs / config.stem, stop)


@train_app.command("unet")
def train_unet_command(config: Config, runs: Runs = RUNS, stop: Stop = None) -> None:
    """Train a UNet and its text encoder from scratch, on the family's autoencoder."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista import load_autoencoder
    from diffmark.vista.training.unet import UNetConfig, build_pipeline, train_unet

    run, folder = read_run_file(config, UNetConfig), runs / config.stem
    train_unet(run, folder, build_pipeline(load_autoencoder(), run, folder), stop)


@train_app.command("words")
def train_words_command(config: Config, base: Base = "vista", runs: Runs = RUNS, stop: Stop = None) -> None:
    """Teach a model's text encoder to keep every word of a caption."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista import load_pipeline
    from diffmark.vista.training.words import WordsConfig, train_words

    train_words(read_run_file(config, WordsConfig), runs / config.stem, load_pipeline(base), stop)


@train_app.command("sibling")
def train_sibling_command(config: Config, base: Base = "vista", runs: Runs = RUNS, stop: Stop = None) -> None:
    """Fine-tune a model to a look."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista import load_pipeline
    from diffmark.vista.training.unet import UNetConfig, train_unet

    train_unet(read_run_file(config, UNetConfig), runs / config.stem, load_pipeline(base), stop)


@train_app.command("lcm")
def train_lcm_command(config: Config, base: Base = "vista", runs: Runs = RUNS, stop: Stop = None) -> None:
    """Distil a model to a few steps."""
    from diffmark.training.run_file import read_run_file
    from diffmark.vista import load_pipeline
    from diffmark.vista.training.lcm import LCMConfig, train_lcm

    train_lcm(read_run_file(config, LCMConfig), runs / config.stem, load_pipeline(base), stop)


@app.command()
def bundle(
    run: Annotated[Path, typer.Argument(help="Folder that a training command saved.", exists=True)],
    out: Annotated[Path, typer.Argument(help="Folder of the model to write.")],
    vae: Annotated[
        Path | None, typer.Option(help="Folder of the same autoencoder, to link to.", exists=True)
    ] = None,
) -> None:
    """Write a trained model as half-precision safetensors, ready to commit."""
    from diffmark.vista.bundle import bundle_model

    typer.echo(f"{out}: {bundle_model(run, out, vae) / 1e6:.1f} MB")
