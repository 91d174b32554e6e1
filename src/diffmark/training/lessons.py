"""What a teacher's encoder makes of photographs: encoded once, kept on disk.

The small autoencoder learns from these pairs, and a family's codec is trained on the latents. An autoencoder that
will read what a pipeline generated learns from the teacher's own pictures as well, which are smoother than
photographs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from diffmark.training.photographs import centre_square, split_photographs
from diffmark.vae import decode, encode
from diffmark.vista.training.data import to_tensor, to_uint8

SIZE = 256  # pixels a side that are encoded of each photograph
DISTURBED = 0.05  # noise in the latents that the teacher makes pictures of, about as strong as a mark


@dataclass(frozen=True)
class Lessons:
    """Pictures (N, S, S, 3) uint8 and the teacher's latents of them (N, C, S/8, S/8) float16."""

    pictures: np.ndarray
    latents: np.ndarray


@torch.no_grad()
def make_lessons(
    teacher: Any, photographs: Path, every: int, cache: Path, size: int = SIZE, generated: bool = False
) -> Lessons:
    """Every second photograph trained on shrunk to the size, of the others a part at full size; kept in `cache`.

    With `generated` half of the pictures are the teacher's, of the photograph's latents and some noise.
    """
    paths = split_photographs(photographs, every).train
    kind = f"{[p.name for p in paths]} {size} {every}" + generated * f" generated {DISTURBED}"
    digest = hashlib.sha256(kind.encode())
    for value in teacher.state_dict().values():
        digest.update(value.float().numpy().tobytes())
    file = cache / f"lessons-{digest.hexdigest()[:16]}.npz"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        pictures, latents = [], []
        for number, path in enumerate(tqdm(paths, desc="teacher", disable=None)):
            picture = _part(path, size, number % 2 == 0, rng)
            z = encode(teacher, to_tensor(picture[None]))
            if generated and number % 4 >= 2:
                noise = torch.from_numpy(rng.standard_normal(z.shape, np.float32))
                picture = to_uint8(decode(teacher, z + DISTURBED * noise))[0]
                z = encode(teacher, to_tensor(picture[None]))
            pictures.append(picture)
            latents.append(z[0].half().numpy())
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, pictures=np.stack(pictures), latents=np.stack(latents))
        partial.replace(file)
    loaded = np.load(file)
    return Lessons(loaded["pictures"], loaded["latents"])


def _part(path: Path, size: int, whole: bool, rng: np.random.Generator) -> np.ndarray:
    if whole:
        return centre_square(path, size)
    picture = centre_square(path, 2 * size)
    y, x = rng.integers(size + 1, size=2)
    return picture[y : y + size, x : x + size]
