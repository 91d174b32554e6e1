"""How well a UNet knows where it paints: what AquaLoRA's pattern, which is tied to places, has to be made from.

    python benchmarks/place_in_features.py

A linear map is fitted from the features of each upper block to cosines of the position, on noised latents of
painted scenes, and judged on others: R2 of 1 is perfect, of 0 useless.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from diffmark.latent.bridge import noised
from diffmark.latent.pictures import from_levels
from diffmark.latent.vae import encode
from diffmark.mark.loading import load_pipeline
from diffmark.provenance import provenance
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene

WAVES = 5  # half waves each way, from none


@torch.no_grad()
def features(pipe: Any, z: Tensor, timestep: int) -> dict[str, Tensor]:
    """Outputs of the middle and upper blocks, (B, C, h, w) each."""
    found: dict[str, list[Tensor]] = {}
    blocks = {"middle": pipe.unet.mid_block}
    blocks |= {f"upper {i + 1}": block for i, block in enumerate(pipe.unet.up_blocks)}
    handles = [
        block.register_forward_hook(lambda _m, _i, out, name=name: found.setdefault(name, []).append(out))
        for name, block in blocks.items()
    ]
    empty = pipe.encode_prompt("", "cpu", 1, False)[0]
    for batch in z.split(16):
        pipe.unet(batch, timestep, empty.expand(len(batch), -1, -1))
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def readable(x: Tensor, ky: int, kx: int) -> float:
    """R2 of a ridge regression from features (B, C, h, w) to a cosine; two thirds fit, one third judges."""
    count, channels, height, width = x.shape
    y_wave = torch.cos(torch.pi * ky * (torch.arange(height) + 0.5) / height)
    x_wave = torch.cos(torch.pi * kx * (torch.arange(width) + 0.5) / width)
    target = (y_wave[:, None] * x_wave).flatten().repeat(count, 1)
    flat, split = x.permute(0, 2, 3, 1).flatten(1, 2), 2 * count // 3
    fit, judge = flat[:split].reshape(-1, channels), flat[split:].reshape(-1, channels)
    wanted, asked = target[:split].reshape(-1), target[split:].reshape(-1)
    mean, offset = fit.mean(0), wanted.mean()
    fit, judge = fit - mean, judge - mean
    ridge = 0.01 * len(fit) * fit.var(0).mean() * torch.eye(channels)
    weights = torch.linalg.solve(fit.T @ fit + ridge, fit.T @ (wanted - offset))
    left = (judge @ weights + offset - asked).square().sum()
    return round(float(1 - left / (asked - asked.mean()).square().sum()), 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="vista", help="embedded model")
    parser.add_argument("--images", type=int, default=48, help="painted scenes")
    parser.add_argument("--timesteps", type=int, nargs="+", default=[200, 600], help="noise levels")
    parser.add_argument(
        "--out", type=Path, default=Path("results/place_in_features.json"), help="JSON to write"
    )
    args = parser.parse_args()

    pipe = load_pipeline(args.model)
    scenes = [
        paint(random_scene(HELD_OUT + i)) for i in tqdm(range(args.images), desc="painting", disable=None)
    ]
    with torch.no_grad():
        z0 = torch.cat([encode(pipe.vae, batch) for batch in from_levels(np.stack(scenes)).split(16)])
    noise = torch.randn(z0.shape, generator=torch.Generator().manual_seed(0))
    rows = []
    for timestep in args.timesteps:
        z = noised(z0, noise, float(pipe.scheduler.alphas_cumprod[timestep]))
        for block, x in features(pipe, z, timestep).items():
            r2 = [[readable(x, ky, kx) if ky or kx else None for kx in range(WAVES)] for ky in range(WAVES)]
            rows.append({"timestep": timestep, "block": block, "side": x.shape[-1], "r2": r2})
            print(timestep, block, "vertical", [row[0] for row in r2[1:]], "horizontal", r2[0][1:])
    config = {"model": args.model, "images": args.images, "timesteps": args.timesteps}
    document = provenance("python benchmarks/place_in_features.py", config) | {"rows": rows}
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
