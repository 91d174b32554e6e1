"""Unmarked pictures that a family's codec is measured on, and calibrated with.

Most are cut out of the latents of enlarged photographs: an encoder of convolutions gives the latents of a crop as
the crop of latents, but for the rim. One of ten is sharp, a photograph as it is or a real crop of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark import statistics, vae
from diffmark.calibration import Calibration, evidence
from diffmark.codec import Codec
from diffmark.evaluation.memory import Arrays
from diffmark.images import read_image
from diffmark.own_model import random_crop
from diffmark.training.family_pictures import Accounts, Reader
from diffmark.training.measurement import blind_rate, rate, rounded
from diffmark.training.photographs import centre_square
from diffmark.vista.training.data import to_tensor

ENLARGED = 768  # pixels a side of the photographs that crops are cut from
SECRETS = 100  # random ones that all negatives are compared with
SHARP = 10  # one negative of so many is not cut out of latents


@dataclass(frozen=True)
class Unmarked:
    """Margins (N, L) of unmarked pictures, the photograph (N,) each comes from, and whether it is sharp (N,)."""

    margins: np.ndarray
    photographs: np.ndarray
    sharp: np.ndarray


def unmarked_pictures(
    reader: Reader, own: nn.Module, paths: Sequence[Path], count: int, seed: int
) -> Unmarked:
    """So many, about as many of each photograph."""
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

    cut = reader.memory.remember(recipe, make)["margins"]
    parts = [np.arange(len(part)) // -(-len(part) // len(paths)) for part in (cut, sharp)]
    return Unmarked(
        np.concatenate([cut, sharp]), np.concatenate(parts), np.repeat([False, True], [len(cut), len(sharp)])
    )


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


def describe_blind(unmarked: Unmarked, kind: str) -> dict[str, Any] | None:
    """Pictures of every second photograph that pass a blind test at 1e-3 calibrated on the other photographs."""
    odd = unmarked.photographs % 2 == 1
    calibration = Calibration.measure(evidence(unmarked.margins[~odd], kind), {}, "", kind)
    return blind_rate(calibration, evidence(unmarked.margins[odd], kind).tolist())


def describe_payloads(unmarked: Unmarked, accounts: Accounts) -> dict[str, Any]:
    """Pictures whose bits verify as a payload under the key, of any account."""
    return rate(accounts.named(unmarked.margins), len(unmarked.margins))


def describe_unmarked(margins: np.ndarray, seed: int) -> dict[str, Any]:
    """How often secrets are found in pictures of these margins (N, L): of all, and of the one found most often.

    Each secret is compared with all pictures, as in use: if unmarked pictures leaned to some bits, some would be
    found far too often.
    """
    bits = margins > 0
    length = bits.shape[1]
    secrets = np.random.default_rng(seed).integers(2, size=(SECRETS, length), dtype=bool)
    matches = np.stack([(bits == secret).sum(axis=1) for secret in secrets])
    found: dict[str, Any] = {
        "crops": len(bits),
        "secrets": SECRETS,
        "bit_accuracy": rounded(matches.mean() / length),
    }
    for fpr in (1e-2, 1e-3):
        passed = matches >= statistics.match_threshold(length, fpr)
        found[f"false_positives_at_{fpr:g}"] = {
            "rate": rounded(passed.mean(), 6),
            "of_the_worst_secret": rate(int(passed.sum(axis=1).max()), len(bits)),
        }
    found["largest_bias_of_a_bit"] = rounded(np.abs(bits.mean(axis=0) - 0.5).max())
    return found
