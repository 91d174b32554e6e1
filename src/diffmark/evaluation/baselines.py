"""Quick figures of a trained baseline on painted scenes that no training saw, without a model's pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from diffmark.attacks import ATTACKS
from diffmark.baselines.base import Method
from diffmark.baselines.stegastamp import StegaStamp
from diffmark.evaluation.batches import batches
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.latent.vae import decode, encode
from diffmark.mark.loading import load_pipeline
from diffmark.metrics import psnr, share
from diffmark.statistics import match_threshold
from diffmark.vista.paint import painted_scenes

RATE = 1e-3
STRENGTHS = (0.4, 0.8)
Pairs = tuple[list[Image.Image], list[Image.Image]]


def measure_baseline(name: str, count: int) -> list[dict[str, Any]]:
    """Clean, unmarked, and every distortion at two strengths; the share detected is at the exact 0.1% threshold."""
    scenes = list(tqdm(painted_scenes(count), "painting", count, disable=None))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 2, (count, 256)).astype(np.uint8)
    if name == StegaStamp.name:
        method: Method = StegaStamp()
        secrets = np.stack([method.carried(secret) for secret in drawn])
        marked = [method.embed(image, secret) for image, secret in zip(scenes, secrets, strict=True)]
        plain = scenes
    elif name == "stable-signature":
        from diffmark.baselines.stable_signature import StableSignature

        method = StableSignature(load_pipeline("vista"))
        secrets = np.stack([method.carried(secret) for secret in drawn])
        plain, marked = through_latents(method, scenes, secrets)
    else:
        raise ValueError(
            f"{name} marks only what its model generates: use diffmark evaluate clean --methods {name}"
        )
    return list(_rows(method, plain, marked, secrets))


@torch.no_grad()
def through_latents(method: Any, scenes: list[Image.Image], secrets: NDArray[np.uint8]) -> Pairs:
    """Scenes decoded from their latents without and with a mark."""
    plain: list[Image.Image] = []
    marked: list[Image.Image] = []
    for batch in batches(scenes, 8):
        z0 = encode(method.pipe.vae, to_pixels(batch))
        plain += to_images(decode(method.pipe.vae, z0))
        marked += method.finish(z0, secrets[: len(z0)])
    return plain, marked


def _rows(
    method: Method, plain: list[Image.Image], marked: list[Image.Image], secrets: NDArray[np.uint8]
) -> Iterator[dict[str, Any]]:
    threshold = match_threshold(method.bits, RATE)

    def row(what: str, images: list[Image.Image], **more: Any) -> dict[str, Any]:
        scores = method.score(images, secrets)
        found = {
            "what": what,
            **more,
            "images": len(images),
            "bit_accuracy": float(scores.mean() / method.bits),
        }
        return found | {
            "least_bits": int(scores.min()),
            "most_bits": int(scores.max()),
            "detected": share(scores >= threshold),
        }

    quality = [psnr(a, b) for a, b in zip(plain, marked, strict=True)]
    yield row("marked", marked, threshold=threshold, psnr=float(np.mean(quality)), psnr_min=min(quality))
    yield row("unmarked", plain)
    chosen = [attack for attack in ATTACKS.values() if attack.kind == "distortion"]
    for attack in tqdm(chosen, desc="attacking", disable=None):
        for strength in STRENGTHS:
            value = {"strength": strength, "value": attack.value(strength)}
            yield row(attack.name, attack.on_all(marked, strength), **value)
