"""Adversarial: a perturbation below sight that moves the image far in some network's features (WAVES)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffmark.attacks.base import Attack
from diffmark.images import read_image
from diffmark.vae import encode

STEPS = 200
STEP_SIZE = 0.05  # of epsilon

Features = Callable[[Tensor], Tensor]  # pixels in [-1, 1], (B, 3, H, W) -> anything differentiable


class ProjectedGradient:
    """L-infinity PGD that maximises the squared distance of the features from the clean image's."""

    def __init__(self, features: Features, steps: int = STEPS) -> None:
        self.features, self.steps = features, steps

    def __call__(self, image: Image.Image, epsilon: float, rng: np.random.Generator) -> Image.Image:
        """`epsilon` on the scale of 0 ... 255."""
        clean = torch.from_numpy(read_image(image).pixels())[None]
        bound = 2 * epsilon / 255  # pixels here run from -1 to 1
        with torch.no_grad():
            target = self.features(clean)
        change = torch.from_numpy(rng.uniform(-bound, bound, tuple(clean.shape)).astype(np.float32))
        for _ in range(self.steps):
            change.requires_grad_(True)
            distance = (self.features((clean + change).clamp(-1, 1)) - target).square().sum()
            (gradient,) = torch.autograd.grad(distance, change)
            change = (change.detach() + STEP_SIZE * bound * gradient.sign()).clamp(-bound, bound)
        pixels = ((clean + change).clamp(-1, 1) + 1) * 127.5
        # Rounding must not leave the ball: the change is a whole number of levels.
        levels = (pixels - (clean + 1) * 127.5).clamp(-epsilon, epsilon).trunc() + (clean + 1) * 127.5
        return Image.fromarray(levels[0].round().clamp(0, 255).permute(1, 2, 0).byte().numpy())


def adversarial_attacks(vae: Any, features: Features | None = None, steps: int = STEPS) -> tuple[Attack, ...]:
    """Against the detector's own autoencoder (grey box), and against features that it does not use."""
    unit = "levels of 255"

    def latents(pixels: Tensor) -> Tensor:
        return encode(vae, pixels)

    attacks = [Attack("adv_vae", "adversarial", 2, 8, unit, ProjectedGradient(latents, steps))]
    if features is not None:
        attacks.append(Attack("adv_features", "adversarial", 2, 8, unit, ProjectedGradient(features, steps)))
    return tuple(attacks)
