"""Adversarial: a perturbation below sight that moves the image far in some network's features (WAVES)."""

from __future__ import annotations

import hashlib
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

STEPS = 50  # of WAVES's 200: by then most of what there is to gain is gained
STEP_SIZE = 0.05  # of epsilon

MARGIN_STEPS = 40  # of the attack on margins, which needs fewer
Features = Callable[[Tensor], Tensor]  # pixels in [-1, 1], (B, 3, H, W) -> anything differentiable


class ProjectedGradient(ModelDistort):
    """L-infinity PGD that maximises the squared distance of the features from the clean image's.

    With `towards_zero` it pulls each feature against the sign that it has instead: margins towards the wrong bit.
    """

    def __init__(
        self,
        features: Features,
        by: str,
        weights: str,
        steps: int = STEPS,
        step_size: float = STEP_SIZE,
        towards_zero: bool = False,
    ) -> None:
        self.features, self.by, self.weights, self.steps = features, by, weights, steps
        self.step_size, self.towards_zero = step_size, towards_zero

    def gain(self, found: Tensor, target: Tensor) -> Tensor:
        """What the steps make larger."""
        if self.towards_zero:
            return -torch.tanh(found * target.sign() / target.abs().mean()).sum()
        return (found - target).square().sum()

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
            gain = self.gain(self.features((clean + change).clamp(-1, 1)), target)
            (gradient,) = torch.autograd.grad(gain, change)
            change = (change.detach() + self.step_size * bound * gradient.sign()).clamp(-bound, bound)
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


def against_margins(method: Any, steps: int = MARGIN_STEPS) -> Attack:
    """White box: the attacker has the very network that reads the bits, and pulls all of them over."""
    fingerprint = hashlib.sha256(repr(method.reader()).encode()).hexdigest()
    gradient = ProjectedGradient(
        method.margins_of, f"{method.name}'s own reader", fingerprint, steps, step_size=0.1, towards_zero=True
    )
    return Attack("adv_margins", "adversarial", 1, 4, "levels of 255", gradient, against=method.name)
