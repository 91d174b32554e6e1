"""`diffmark generate`: marked images from prompts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from diffmark.cli.c2pa import Chain, Disclose, PrivateKey, disclosing, signing
from diffmark.cli.fingerprint import Keep, keeping
from diffmark.cli.marks import (
    DEFAULT_BITS,
    Account,
    KeyFile,
    PayloadBits,
    PayloadKey,
    Principal,
    SecretOption,
    check_choice,
    ring_for,
    secrets_for,
    tell_key,
)
from diffmark.cli.opening import Actor, Url, opened
from diffmark.cli.payloads import read_scheme


class Layers(str, Enum):
    """Which marks an image gets; they carry one secret."""

    both = "both"
    generation = "generation"
    pixel = "pixel"


def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to paint.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file with one prompt a line.")] = None,
    model: Annotated[
        str, typer.Option(help="An embedded model, a pipeline's folder, or a hub id.")
    ] = "vista",
    codec: Annotated[
        str | None,
        typer.Option(
            help="Latent codec: name, folder, or hub id. By default the one that ships for the model's latent "
            "space; where there is none, the pixel layer marks alone."
        ),
    ] = None,
    secret: SecretOption = "random",
    principal: Principal = None,
    payload_key: PayloadKey = None,
    account: Account = None,
    payload_bits: PayloadBits = DEFAULT_BITS,
    key: KeyFile = None,
    layers: Annotated[
        Layers, typer.Option(help="Both marks, the generation layer's alone, or the pixel layer's alone.")
    ] = Layers.both,
    count: Annotated[int, typer.Option(min=1, help="Images a prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first image; the next ones count up.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps; 50, or 4 of an LCM.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance, diffusers' scale; 7.5, or 4 for the embedded models.")
    ] = None,
    injection: Annotated[
        str | None,
        typer.Option(
            help="persistent, paper, mean, late or final, of a codec that adds delta; its own by default."
        ),
    ] = None,
    strength: Annotated[float, typer.Option(help="Scale of the latent codec's mark; 0 leaves it out.")] = 1.0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best there is by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for PNGs and images.jsonl.")] = Path("generated"),
    c2pa_cert: Chain = None,
    c2pa_key: PrivateKey = None,
    disclose: Disclose = None,
    fingerprints: Keep = False,
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Generate images that carry a secret."""
    from diffmark.keys.ring import as_ring
    from diffmark.pixel.codec import PixelCodec

    texts = _prompts(prompt, prompts)
    as_ring(key)  # a bad key is said before any work
    asked = disclosing(c2pa_cert, c2pa_key, disclose)  # so is a bad certificate
    if codec is not None and layers is Layers.pixel:
        raise typer.BadParameter("the pixel layer alone needs no latent codec: leave out --codec or --layers")
    check_choice(secret, principal, payload_key, account)

    from diffmark.latent.codec import Codec
    from diffmark.latent.vae import check_family, codec_for
    from diffmark.mark.generation import ImageSpec, Sampling, generate_into
    from diffmark.mark.loading import default_guidance, default_steps, load_pipeline
    from diffmark.progress import track

    pixel = PixelCodec() if layers is not Layers.generation else None
    loaded = Codec.from_pretrained(codec) if codec else None
    length = loaded.config.length if loaded else PixelCodec().length
    scheme = read_scheme(payload_key, payload_bits, length)
    pipe = load_pipeline(model, device)
    pipe.set_progress_bar_config(disable=True)
    if loaded is not None:
        check_family(loaded.config, pipe.vae)
    elif layers is not Layers.pixel:
        codec = codec_for(getattr(pipe, "vae", None))
        loaded = Codec.from_pretrained(codec) if codec else None
        if loaded is None and layers is Layers.generation:
            raise ValueError(f"no codec ships for the latents of {model}: give --codec, or --layers pixel")
        if loaded is None:
            typer.echo(
                f"no codec ships for the latents of {model}: its images are marked in the pixel layer alone",
                err=True,
            )
            layers = Layers.pixel
    if injection and loaded is None:
        raise typer.BadParameter("--injection is for a latent codec: give --codec")
    sampling = Sampling(
        steps or default_steps(model),
        guidance or default_guidance(model),
        strength,
        loaded.dosing.in_mode(injection) if injection and loaded else None,
    )
    made_by = {"principal": principal, "model": model, "layers": layers.value}
    if loaded is not None:
        made_by["codec"] = codec or ""
    needed = principal or c2pa_cert or c2pa_key or fingerprints
    with opened(registry, actor) if needed else nullcontext() as keys:
        ring = ring_for(keys, key)
        made_by["key_id"] = ring.current.id
        pixel = PixelCodec(ring.current) if pixel else None
        if loaded is not None:
            loaded.use_key(ring.current)
        tell_key(ring)
        finish = signing(keys, asked)
        finish = keeping(keys, finish, "generate") if fingerprints else finish
        prompts_of_all = texts * count
        secrets = secrets_for(
            len(prompts_of_all), length, secret, principal, scheme, account, keys, "generate"
        )
        specs = [
            ImageSpec(text, bits, seed + i, account)
            for i, (text, bits) in enumerate(zip(prompts_of_all, secrets, strict=True))
        ]
        if finish and keys is not None:
            keys.manifests.check(spec.secret for spec in specs)
        made = generate_into(out, pipe, loaded, specs, sampling, made_by, finish, pixel)
        for record in track(made, "generating", len(specs)):
            line = f"{out / record['file']}  secret {record['secret']}  seed {record['seed']}  {record['prompt']}"
            line += "".join(f"\n  note: {note}" for note in record["notes"])
            typer.echo(json.dumps(record) if as_json else line)


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give either a PROMPT or --prompts FILE")
    texts = [prompt.strip()] if prompt is not None else []
    if file is not None:
        texts = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    if not texts or not all(texts):
        raise typer.BadParameter("there is no prompt")
    return texts
