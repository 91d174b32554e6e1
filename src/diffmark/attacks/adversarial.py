"""Adversarial: a perturbation below sight that moves the image far in some network's features (WAVES)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffmark.attacks.base import Attack, ModelDistort, Rng
from diffmark.latent.pictures import to_pixels
from diffmark.latent.vae import encode
from diffmark.provenance import weights_digest

STEPS = 200
STEP_SIZE = 0.05  # of epsilon

Features = Callable[[Tensor], Tensor]  # pixels in [-1, 1], (B, 3, H, W) -> anything differentiable


class ProjectedGradient(ModelDistort):
    """L-infinity PGD that maximises the squared distance of the features from the clean image's."""

    def __init__(self, features: Features, by: str, weights: str, steps: int = STEPS) -> None:
        self.features, self.by, self.weights, self.steps = features, by, weights, steps

    def batch(self, images: list[Image.Image], value: float, rngs: list[Rng]) -> list[Image.Image]:
        """`value` is epsilon on the scale of 0 ... 255."""
        clean = to_pixels(images)
        clean = clean.to(memory_format=torch.channels_last)
        bound = 2 * value / 255  # pixels here run from -1 to 1
        with torch.no_grad():
            target = self.features(clean)
        starts = [rng.uniform(-bound, bound, tuple(clean.shape[1:])) for rng in rngs]
        change = torch.from_numpy(np.stack(starts).astype(np.float32))
        for _ in range(self.steps):
            change.requires_grad_(True)
            distance = (self.features((clean + change).clamp(-1, 1)) - target).square().sum()
            (gradient,) = torch.autograd.grad(distance, change)
            change = (change.detach() + STEP_SIZE * bound * gradient.sign()).clamp(-bound, bound)
        # Rounding must not leave the ball: the change is a whole number of levels.
        whole = (change * 127.5).round().clamp(-math.floor(value), math.floor(value))
        levels = ((clean + 1) * 127.5).round() + whole
        rounded = levels.clamp(0, 255).permute(0, 2, 3, 1).byte().numpy()
        return [Image.fromarray(np.ascontiguousarray(picture)) for picture in rounded]


def against_vae(vae: Any, steps: int = STEPS) -> Attack:
    """Grey box: the attacker has the autoencoder that the detector looks through."""
    vae.requires_grad_(False)

    def latents(pixels: Tensor) -> Tensor:
        return encode(vae, pixels)

    gradient = ProjectedGradient(latents, "the detector's autoencoder", weights_digest(vae), steps)
    return Attack("adv_vae", "adversarial", 2, 8, "levels of 255", gradient)


def against_features(features: Features, by: str, weights: str, steps: int = STEPS) -> Attack:
    """Black box: features of a network that the detector does not use."""
    gradient = ProjectedGradient(features, by, weights, steps)
    return Attack("adv_features", "adversarial", 2, 8, "levels of 255", gradient)
