"""What it would be worth to even the cost of delta over a picture: the same pictures and secrets at one PSNR.

One delta changes some places of a picture much more than others. Here it is divided, place by place, by a power of
the squared error that it makes there, fitted anew, and scaled so that all have the same PSNR:
power 0 is what DiffMark does. Same seed, through a family's tiny autoencoder; read with it and with ours.

    python benchmarks/evened_delta.py --pictures PHOTOGRAPHS --tiny STEM --out results/evened_delta.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from diffmark.attacks.distortion import jpeg
from diffmark.detection import Detector
from diffmark.evaluation.metrics import psnr, ssim
from diffmark.fitting import fitted_weights
from diffmark.latent_marks import Finished, fit
from diffmark.training.family_pictures import as_image, as_pixels
from diffmark.training.measurement import rounded, write_result
from diffmark.training.photographs import unseen_photographs
from diffmark.training.tiny import open_autoencoder
from diffmark.vae import encode

POWERS = (0.0, 0.125, 0.25, 0.5)  # of the squared error; 0.5 makes it the same everywhere
WINDOW = 5  # latents a side that the error is averaged over
LEAST = 0.02  # of the mean error, that a place has at least
STRENGTH = 0.42  # at which the error of a place is looked up
SCALINGS = 4  # steps to the PSNR that is asked for


def evened(it: Finished, power: float, level: float) -> Tensor:
    """What is added to z for a PSNR of `level` dB."""
    plain, asked = it.picture(), 4 / 10 ** (level / 10)
    delta = fit(it)
    error = (it.picture(it.strength * delta) - plain).square().mean(dim=1, keepdim=True)
    cell = plain.shape[-1] // it.size[-1]
    cost = F.avg_pool2d(F.avg_pool2d(error, cell), WINDOW, 1, WINDOW // 2, count_include_pad=False)
    shape = cost.clamp_min(LEAST * cost.mean()) ** -power

    def scaled(delta: Tensor) -> Tensor:
        change = it.strength * delta * shape / shape.mean()
        for _ in range(SCALINGS):
            change = change * (asked / (it.picture(change) - plain).square().mean()).sqrt()
        return change

    def read(delta: Tensor) -> Tensor:
        return it.read(scaled(delta)).mean(dim=0)

    weights = fitted_weights(it.codec, it.bits, it.read().mean(dim=0), read)
    return scaled(it.codec.delta(it.bits, weights=weights))


def figures(
    readers: dict[str, Detector], images: list[Image.Image], plain: list[Image.Image], secrets: np.ndarray
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "psnr": rounded(np.mean(list(map(psnr, images, plain)))),
        "ssim": rounded(np.mean(list(map(ssim, images, plain)))),
    }
    pressed = [jpeg(image, 50, np.random.default_rng(0)) for image in images]
    for name, reader in readers.items():
        for after, seen in (("", images), ("_after_jpeg_50", pressed)):
            margins = np.stack([reader.detect(image).margins for image in seen])
            found[name + after] = rounded(((margins > 0) == secrets).mean())
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument(
        "--tiny", type=str, required=True, help="the family's tiny autoencoder, see train family"
    )
    parser.add_argument("--codec", default="sd")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--psnr", type=float, default=38.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    own, tiny = Detector.from_pretrained(options.codec), open_autoencoder(options.tiny)
    tiny.to(memory_format=torch.channels_last)
    readers = {"tiny": Detector(own.codec, tiny), "ours": own}
    photographs = unseen_photographs(options.pictures, options.count, options.seed)
    secrets = np.random.default_rng(options.seed).integers(2, size=(options.count, 64), dtype=np.uint8)
    marked: dict[float, list[Image.Image]] = {power: [] for power in POWERS}
    plain = []
    for number, photograph in enumerate(tqdm(photographs, "marking", disable=None)):
        z = encode(tiny, as_pixels(photograph))
        it = Finished(own.codec, tiny, z, secrets[number : number + 1], STRENGTH, [tiny, own.vae])
        plain.append(as_image(it.picture()))
        for power, images in marked.items():
            images.append(as_image(it.picture(evened(it, power, options.psnr))))
    found = {f"power_{power:g}": figures(readers, images, plain, secrets) for power, images in marked.items()}
    write_result(options.out, found, {"codec": options.codec, "photographs": options.count}, options.seed)


if __name__ == "__main__":
    main()
