"""Latents of FLUX.2 with a real autoencoder of its space: do they go in and out as its pipeline has them?

    python benchmarks/flux2_latents.py --weights DIR --photographs DIR --out results/flux2_latents.json

DIR holds taef2_encoder.safetensors and taef2_decoder.safetensors (madebyollin/taesd), which are distilled from
FLUX.2's autoencoder: 32 channels, eight pixels each. They have no batch norm; its statistics are those of the
photographs' own latents. Photographs go to diffusion-scaled latents by `diffmark.latent.vae.encode`, into the
pipeline's layout by `arrange`, through the pipeline's own way to pictures, and back by `restore` and `decode`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from diffusers import AutoencoderTiny, Flux2Pipeline
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from diffmark.latent.pictures import psnr, to_pixels
from diffmark.latent.vae import decode, encode
from diffmark.mark.packing import arrange, restore
from diffmark.provenance import command_line, provenance

SIDE, COUNT, CHANNELS = 256, 24, 32
EPSILON = 1e-4  # of the pipeline's batch norm


class Pooled(nn.Module):
    """A block behind its further branch: x + pool(x)."""

    def __init__(self, block: nn.Module, width: int = 64) -> None:
        super().__init__()
        self.block = block
        self.pool = nn.Sequential(
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.GroupNorm(4, 4 * width),
            nn.ReLU(),
            nn.Conv2d(4 * width, width, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x + self.pool(x))


def load(folder: Path) -> AutoencoderTiny:
    """taef2 in diffusers' class, its three blocks at an eighth of the size with their branches."""
    vae = AutoencoderTiny(latent_channels=CHANNELS)
    for half, first, name in ((vae.encoder, 0, "encoder"), (vae.decoder, -1, "decoder")):
        weights = load_file(folder / f"taef2_{name}.safetensors")
        for number in sorted({int(key.split(".")[0]) for key in weights if ".pool." in key}):
            half.layers[number + first] = Pooled(half.layers[number + first])
        named = {}
        for key, value in weights.items():
            number, _, rest = key.partition(".")
            place = f"layers.{int(number) + first}."
            pooled = isinstance(half.layers[int(number) + first], Pooled)
            named[place + ("block." if pooled and not rest.startswith("pool.") else "") + rest] = (
                value.float()
            )
        half.load_state_dict(named)
    return vae.eval()


def patches(latents: Tensor) -> Tensor:
    """The pipeline's own patches: (B, C, h, w) -> (B, 4 C, h/2, w/2)."""
    return Flux2Pipeline._patchify_latents(latents)


@torch.no_grad()
def measure(vae: AutoencoderTiny, pixels: Tensor) -> dict[str, float]:
    """Round trips in dB, and how far our latents are from those of the pipeline."""
    raw = vae.encode(pixels).latents
    found = patches(raw)
    vae.bn = SimpleNamespace(running_mean=found.mean((0, 2, 3)), running_var=found.var((0, 2, 3)))
    vae.register_to_config(batch_norm_eps=EPSILON)
    latents = encode(vae, pixels)
    pipe = SimpleNamespace(vae=vae, _patchify_latents=patches)
    theirs = Flux2Pipeline._encode_vae_image(pipe, pixels, generator=None)
    tokens = arrange(latents, theirs.flatten(2).transpose(1, 2))
    # From here as Flux2Pipeline.__call__ ends.
    packed = tokens.transpose(1, 2).unflatten(2, theirs.shape[-2:])
    deviation = torch.sqrt(vae.bn.running_var + EPSILON).view(1, -1, 1, 1)
    given = Flux2Pipeline._unpatchify_latents(packed * deviation + vae.bn.running_mean.view(1, -1, 1, 1))
    back = restore(tokens, CHANNELS, latents.shape[-2:])
    wrong = arrange(latents, tokens).roll(1, dims=2)  # what a wrong order of channels would look like
    decoded = {
        "direct": vae.decode(raw).sample,
        "through_the_pipeline": vae.decode(given).sample,
        "back_by_ours": decode(vae, back),
        "channels_off_by_one": decode(vae, restore(wrong, CHANNELS, latents.shape[-2:])),
    }
    return {
        "deviation_of_scaled_latents": float(latents.std()),
        **{f"psnr_{name}": float(psnr(found.clamp(-1, 1), pixels).mean()) for name, found in decoded.items()},
        "largest_difference_to_the_pipelines_latents": float((arrange(latents, theirs) - theirs).abs().max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--photographs", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/flux2_latents.json"))
    given = parser.parse_args()
    document = provenance(command_line(), {"side": SIDE, "photographs": COUNT})
    paths = sorted(path for path in given.photographs.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    images = [Image.open(path).convert("RGB").resize((SIDE, SIDE)) for path in paths[:COUNT]]
    document["results"] = measure(load(given.weights), to_pixels(images))
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["results"], indent=1))


if __name__ == "__main__":
    main()
