"""Unmarked pictures that a family's codec is measured on, and calibrated with.

Most are cut out of the latents of enlarged photographs: an encoder of convolutions gives the latents of a crop as
the crop of latents, but for the rim. One of ten is sharp, a photograph as it is or a real crop of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark import statistics, vae
from diffmark.codec import Codec
from diffmark.evaluation.memory import Arrays
from diffmark.images import read_image
from diffmark.own_model import random_crop
from diffmark.training.family_pictures import Reader
from diffmark.training.measurement import rate, rounded
from diffmark.training.photographs import centre_square
from diffmark.vista.training.data import to_tensor

ENLARGED = 768  # pixels a side of the photographs that crops are cut from
SECRETS = 100  # random ones that each negative is compared with
SHARP = 10  # one negative of so many is not cut out of latents


def unmarked_margins(
    reader: Reader, own: nn.Module, paths: Sequence[Path], count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Margins (count, L) of unmarked pictures, and those of the sharp ones among them."""
    sharp = _sharp(reader, paths, -(-count // SHARP), seed)
    rest = count - len(sharp)
    recipe = reader.recipe | {
        "cut": [[path.name, path.stat().st_size] for path in paths],
        "count": rest,
        "seed": seed,
        "pixels": ENLARGED,
    }

    def make() -> Arrays:
        return {"margins": _cut_from_latents(reader.detector.codec, own, paths, rest, seed)}

    return np.concatenate([reader.memory.remember(recipe, make)["margins"], sharp]), sharp


def _cut_from_latents(
    codec: Codec, own: nn.Module, paths: Sequence[Path], count: int, seed: int
) -> np.ndarray:
    each = -(-count // len(paths))
    height, width = codec.config.height, codec.config.width
    rows: list[Tensor] = []
    for number, path in enumerate(tqdm(paths, desc="negatives", disable=None)):
        z = vae.encode(own, to_tensor(centre_square(path, ENLARGED)[None]))[0]
        rng = np.random.default_rng([seed, number])
        tops = rng.integers(z.shape[1] - height + 1, size=each)
        lefts = rng.integers(z.shape[2] - width + 1, size=each)
        crops = [z[:, y : y + height, x : x + width] for y, x in zip(tops, lefts, strict=True)]
        logits = codec.decode(torch.stack(crops))
        rows.append(logits[..., 1] - logits[..., 0])
    return torch.cat(rows)[:count].numpy()


def _sharp(reader: Reader, paths: Sequence[Path], count: int, seed: int) -> np.ndarray:
    each, size = -(-count // len(paths)), reader.detector.codec.config.image_size[0]
    rows = []
    for number, path in enumerate(tqdm(paths[:count], desc="sharp negatives", disable=None)):
        picture, rng = read_image(path).image, np.random.default_rng([seed, number, 1])
        crops = [random_crop(picture, rng) for _ in range(each - 1)]
        rows.append(reader.margins([Image.fromarray(centre_square(path, size)), *crops]))
    return np.concatenate(rows)[:count]


def describe_unmarked(margins: np.ndarray, seed: int) -> dict[str, Any]:
    """How often random secrets are found in pictures of these margins (N, L)."""
    bits = margins > 0
    length, rng = bits.shape[1], np.random.default_rng(seed)
    matches = np.stack([(bits == rng.integers(2, size=bits.shape)).sum(axis=1) for _ in range(SECRETS)])
    found: dict[str, Any] = {
        "crops": len(bits),
        "secrets_a_crop": SECRETS,
        "bit_accuracy": rounded(matches.mean() / length),
    }
    for fpr in (1e-2, 1e-3):
        passed = int((matches >= statistics.match_threshold(length, fpr)).sum())
        found[f"false_positives_at_{fpr:g}"] = rate(passed, matches.size)
    found["largest_bias_of_a_bit"] = rounded(np.abs(bits.mean(axis=0) - 0.5).max())
    return found
