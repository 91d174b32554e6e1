"""Images to measure a codec on: the same image with a mark and without it, and the secrets that were written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark.latent import vae
from diffmark.latent.codec import Codec
from diffmark.latent.pictures import to_images
from diffmark.mark.context import watermark
from diffmark.mark.latents import mark_latents
from diffmark.training.draws import Draws
from diffmark.training.sources import Pictures

BATCH = 16
FIRST_SEED = 2_000_000  # of generated images; training has no seeds of this kind

Pairs = Iterator[tuple[Tensor, list[Image.Image], list[Image.Image]]]
"""Secrets (B, L), marked images, the same images without the mark."""


def pairs_of_pictures(
    codec: Codec, autoencoder: nn.Module, pictures: Pictures, rows: range, seed: int
) -> Pairs:
    """D(z + delta) and D(z) of pictures, for injection mode final."""
    share = float(codec.injection.weights([0.0])[-1])
    for batch, pixels in batches(pictures, rows, "marking"):
        secrets = Draws(seed, batch[0]).secrets(len(batch), codec.config.length)
        z = vae.encode(autoencoder, pixels)
        marked = vae.decode(autoencoder, mark_latents(codec, z, secrets, share))
        yield secrets, to_images(marked), to_images(vae.decode(autoencoder, z))


def pairs_of_prompts(
    codec: Codec, pipe: Any, prompts: Sequence[str], steps: int, guidance: float, seed: int
) -> Pairs:
    """Images that a pipeline generates with a mark and, from the same noise, without one."""
    pipe.set_progress_bar_config(disable=True)
    for start in tqdm(range(0, len(prompts), BATCH), desc="generating", disable=None):
        part = list(prompts[start : start + BATCH])
        secrets = Draws(seed, start).secrets(len(part), codec.config.length)

        def generate(part: list[str] = part, start: int = start) -> list[Image.Image]:
            noise = [torch.Generator().manual_seed(FIRST_SEED + start + i) for i in range(len(part))]
            made = pipe(part, num_inference_steps=steps, guidance_scale=guidance, generator=noise)
            return list(made.images)

        with watermark(pipe, codec, secrets.numpy().astype(np.uint8), pixel=False, verify=None):
            marked = generate()
        yield secrets, marked, generate()


def batches(pictures: Pictures, rows: range, what: str) -> Iterator[tuple[range, Tensor]]:
    """Indices and pixels (B, 3, H, W) of pictures."""
    for start in tqdm(range(rows.start, rows.stop, BATCH), desc=what, disable=None):
        batch = range(start, min(start + BATCH, rows.stop))
        yield batch, torch.from_numpy(np.stack([pictures.pixels(index) for index in batch]))
