"""What stands between a mark and its reader: the picture. A plain spread-spectrum code, read in three ways.

    python benchmarks/matched_filter.py --out results/matched_filter.json

No network is trained here. Each bit has a random pattern of +-1 over the latents; delta is their signed sum. A bit
is read as the sign of the correlation with its pattern: on latents as they are, less the mean around each place,
and whitened (`whiten`). On unseen scenes of the embedded family, through 8-bit pixels and back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from diffmark.latent import vae
from diffmark.latent.networks import local_mean, rescale, whiten
from diffmark.latent.pictures import from_levels, psnr
from diffmark.provenance import provenance
from diffmark.training.pixels import round_trip
from diffmark.vista import load_autoencoder
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene

LENGTH, BATCH = 64, 16
DEVIATIONS = (0.09, 0.06, 0.05, 0.04, 0.03, 0.02)
READERS = {
    "plain": lambda z: z,
    "less local mean": lambda z: z - local_mean(z, 3),
    "whitened": whiten,
}


@torch.no_grad()
def measure(images: int, seed: int) -> list[dict[str, float]]:
    """A row for each deviation of delta: same-seed PSNR and the bit accuracy of each reader."""
    generator = torch.Generator().manual_seed(seed)
    autoencoder = load_autoencoder()
    codes = torch.randn(LENGTH, 4, 32, 32, generator=generator).sign()
    secrets = torch.randint(0, 2, (images, LENGTH), generator=generator)
    deltas = rescale(torch.einsum("bl,lchw->bchw", 2.0 * secrets - 1, codes), 1.0)
    rows: list[dict[str, list[Tensor]]] = [{} for _ in DEVIATIONS]
    scenes = [random_scene(HELD_OUT + number) for number in range(images)]
    for start in tqdm(range(0, images, BATCH), "pictures", disable=None):
        part = slice(start, start + BATCH)
        pictures = torch.cat([from_levels(paint(scene)[None]) for scene in scenes[part]])
        z = vae.encode(autoencoder, pictures)
        clean = vae.decode(autoencoder, z).clamp(-1, 1)
        for row, deviation in zip(rows, DEVIATIONS, strict=True):
            marked = vae.decode(autoencoder, z + deviation * deltas[part]).clamp(-1, 1)
            row.setdefault("psnr", []).append(psnr(marked, clean))
            seen = round_trip(autoencoder, marked, rounding=True)
            for name, reader in READERS.items():
                score = torch.einsum("bchw,lchw->bl", reader(seen), codes)
                row.setdefault(name, []).append(((score > 0) == secrets[part]).float().mean(1))
    return [
        {"deviation": deviation, **{name: round(float(torch.cat(v).mean()), 4) for name, v in row.items()}}
        for deviation, row in zip(DEVIATIONS, rows, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/matched_filter.json"))
    options = parser.parse_args()
    rows = measure(options.images, options.seed)
    config = {"images": options.images, "length": LENGTH, "seed": options.seed}
    document = {**provenance("python benchmarks/matched_filter.py", config), "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
