"""`diffmark generate`: marked images from prompts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.c2pa import Chain, PrivateKey, signing
from diffmark.cli.opening import Actor, Url, opened
from diffmark.cli.payloads import read_scheme

if TYPE_CHECKING:
    from diffmark.codec import Codec
    from diffmark.generation import Order
    from diffmark.payload import PayloadScheme
    from diffmark.registry import Registry


def generate(
    prompt: Annotated[str | None, typer.Argument(help="What to paint.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file with one prompt a line.")] = None,
    model: Annotated[
        str, typer.Option(help="An embedded model, a pipeline's folder, or a hub id.")
    ] = "vista",
    codec: Annotated[str, typer.Option(help="A codec's name, folder, or hub id.")] = "vista",
    secret: Annotated[str, typer.Option(help="Hex digits, or 'random' for a fresh one an image.")] = "random",
    principal: Annotated[
        str | None, typer.Option(help="Issue a key of the registry an image, to this principal.")
    ] = None,
    payload_key: Annotated[
        Path | None, typer.Option(help="Write payloads under the key in this file (diffmark secret key).")
    ] = None,
    account: Annotated[int | None, typer.Option(help="The account in the payload.")] = None,
    payload_bits: Annotated[str, typer.Option(help="Bits of account, nonce and check.")] = "20,13,12",
    count: Annotated[int, typer.Option(min=1, help="Images a prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first image; the next ones count up.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps; 50, or 4 of an LCM.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance, diffusers' scale; 7.5, or 4 for the embedded models.")
    ] = None,
    injection: Annotated[
        str | None, typer.Option(help="persistent, paper, mean, late or final; the codec's own by default.")
    ] = None,
    strength: Annotated[float, typer.Option(help="Scale of the mark; 0 leaves the image unmarked.")] = 1.0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; the best there is by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for PNGs and images.jsonl.")] = Path("generated"),
    c2pa_cert: Chain = None,
    c2pa_key: PrivateKey = None,
    registry: Url = None,
    actor: Actor = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line an image.")] = False,
) -> None:
    """Generate images that carry a secret."""
    from diffmark.codec import Codec
    from diffmark.generation import Sampling, generate_into
    from diffmark.pipelines import default_guidance, default_steps, load_pipeline
    from diffmark.progress import track

    texts = _prompts(prompt, prompts)
    loaded = Codec.from_pretrained(codec)
    scheme = read_scheme(payload_key, payload_bits, loaded.config.length)
    sampling = Sampling(
        steps or default_steps(model),
        guidance or default_guidance(model),
        strength,
        loaded.config.injection_in(injection) if injection else None,
    )
    made_by = {"model": model, "codec": codec}
    with opened(registry, actor) if principal or c2pa_cert or c2pa_key else nullcontext() as keys:
        finish = signing(keys, c2pa_cert, c2pa_key)
        if principal is not None and keys is not None:
            orders = _issued(texts * count, keys, principal, secret, scheme, seed)
        else:
            orders = _orders(texts * count, loaded, secret, scheme, account, seed)
        if finish and keys is not None:
            keys.manifests.check(order.secret for order in orders)
        pipe = load_pipeline(model, device)
        pipe.set_progress_bar_config(disable=True)
        made = generate_into(out, pipe, loaded, orders, sampling, made_by, finish)
        for record in track(made, "generating", len(orders)):
            line = f"{out / record['file']}  secret {record['secret']}  seed {record['seed']}  {record['prompt']}"
            typer.echo(json.dumps(record) if as_json else line)


def _issued(
    texts: list[str], keys: Registry, principal: str, secret: str, scheme: PayloadScheme | None, seed: int
) -> list[Order]:
    from diffmark.generation import Order

    if secret != "random" or scheme is not None:
        raise typer.BadParameter("--principal issues the secret: leave out --secret and --payload-key")
    issued = keys.issue_many([principal] * len(texts), reason="generate")
    return [Order(text, issued[i].secret, seed + i) for i, text in enumerate(texts)]


def _prompts(prompt: str | None, file: Path | None) -> list[str]:
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give either a PROMPT or --prompts FILE")
    texts = [prompt.strip()] if prompt is not None else []
    if file is not None:
        texts = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    if not texts or not all(texts):
        raise typer.BadParameter("there is no prompt")
    return texts


def _orders(
    texts: list[str], codec: Codec, secret: str, scheme: PayloadScheme | None, account: int | None, seed: int
) -> list[Order]:
    from diffmark.generation import Order
    from diffmark.secret import from_hex, random_secrets

    if (scheme is None) != (account is None):
        raise typer.BadParameter("--payload-key and --account go together")
    length = codec.config.length
    secrets: Any
    if scheme is not None and account is not None:
        if secret != "random":
            raise typer.BadParameter("a payload makes the secret itself: leave out --secret")
        secrets = [scheme.encode(account) for _ in texts]
    elif secret == "random":
        secrets = random_secrets(len(texts), length)
    else:
        secrets = [from_hex(secret, length)] * len(texts)
    return [
        Order(text, bits, seed + i, account)
        for i, (text, bits) in enumerate(zip(texts, secrets, strict=True))
    ]
