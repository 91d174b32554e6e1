"""`diffmark calibrate`: what a codec does on your own model, measured and written into a copy of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

RATE = 1e-3  # that `diffmark detect` states by default
NEEDED = 999  # unmarked images that can tell one in a thousand


def calibrate(
    model: Annotated[
        str, typer.Option(help="Your model: a pipeline's or autoencoder's folder, or a hub id.")
    ],
    codec: Annotated[str, typer.Option(help="A codec for the model's latents: name, folder, or hub id.")],
    images: Annotated[
        Path,
        typer.Option(help="Folder of pictures of the kind that you generate.", exists=True, file_okay=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the calibrated codec; CODEC-calibrated by default.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Pictures at most.")] = 200,
    height: Annotated[
        int | None, typer.Option(min=1, help="Of the pictures that you generate; the codec's own by default.")
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Likewise; one alone stands for both.")] = None,
    crops: Annotated[int, typer.Option(min=0, help="Unmarked crops a picture.")] = 4,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best there is by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of secrets and crops.")] = 0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the codec's calibration of before.")] = False,
    half: Annotated[bool, typer.Option("--half", help="Write weights in half precision.")] = False,
) -> None:
    """Calibrate a codec for your own model.

    Bit accuracy, PSNR and false positives are measured. Blind verdicts (detect without a secret, with --vae
    MODEL) are then as strict as both these images and those of the calibration before ask for. With --fresh
    they hold for your model alone.
    """
    import shutil

    import torch

    from diffmark.cli.detect import expand
    from diffmark.evaluation.own_model import OTHERS
    from diffmark.evaluation.own_model import calibrate as measure
    from diffmark.latent.calibration import check_negatives
    from diffmark.latent.codec import Codec
    from diffmark.latent.device import find_device
    from diffmark.latent.files import find_codec
    from diffmark.latent.vae import load_vae
    from diffmark.progress import track

    paths = list(expand([str(images)], []))[:count]
    if paths:
        check_negatives(len(paths) * (crops + OTHERS))  # before minutes of work
    place = find_device(device)
    autoencoder = load_vae(model).float().to(place)
    loaded = Codec.from_pretrained(codec).to(place)
    out = out or Path(f"{Path(codec).name}-calibrated")
    sides = [side for side in (height, width) if side]
    size = (sides[0], sides[-1]) if sides else None
    found = measure(loaded, autoencoder, track(paths, "measuring", len(paths)), crops, seed, size)
    before = None if fresh else loaded.calibration
    loaded.calibration = found.stricter(before) if before else found
    loaded.provenance = {**loaded.provenance, "calibrated_on": model}
    loaded.cpu().save_pretrained(out, dtype=torch.float16 if half else torch.float32)
    source = find_codec(codec)
    if source.resolve() != out.resolve() and (source / "vae").is_dir():
        shutil.copytree(source / "vae", out / "vae", dirs_exist_ok=True)
    typer.echo(json.dumps(loaded.calibration.measured, indent=2))
    typer.echo(f"written to {out}", err=True)
    if loaded.calibration.smallest > RATE:
        typer.echo(
            f"{loaded.calibration.negatives} unmarked images are too few for blind verdicts at a false-positive "
            f"rate of {RATE:g}: they will be undecided; give {NEEDED} by more pictures or --crops",
            err=True,
        )
