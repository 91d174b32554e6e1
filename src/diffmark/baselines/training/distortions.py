"""Distortions between a baseline's encoder and decoder, differentiable (kornia)."""

from __future__ import annotations

import torch
from torch import Tensor

from diffmark.training.robustness import attack, round_to_bytes


def perspective(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Each corner moved by up to 0.1 strength of the side, for every image anew; black outside."""
    from kornia.geometry.transform import get_perspective_transform, warp_perspective

    height, width = pixels.shape[-2:]
    corners = torch.tensor([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]).float()
    corners = corners.expand(len(pixels), 4, 2)
    moved = corners + 0.1 * strength * width * (2 * torch.rand(corners.shape, generator=generator) - 1)
    return warp_perspective(pixels, get_perspective_transform(corners, moved), (height, width))


def in_a_row(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """StegaStamp's: warp, blur, colour, noise and JPEG one after the other, each of random strength."""

    def some() -> float:
        return strength * float(torch.rand((), generator=generator))

    pixels = perspective(pixels, some(), generator)
    for name in ("blur", "noise", "brightness", "contrast", "jpeg"):
        # A third of the time each: all of them at once would hide what a single one needs.
        if torch.rand((), generator=generator) < 1 / 3:
            pixels = attack(name, pixels, some(), generator)
    return round_to_bytes(pixels)


def one_of(names: tuple[str, ...], pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Stable Signature's and AquaLoRA's: one of the attacks, or none."""
    choice = int(torch.randint(len(names) + 1, (), generator=generator))
    if choice < len(names):
        amount = strength * float(torch.rand((), generator=generator))
        pixels = attack(names[choice], pixels, amount, generator)
    return round_to_bytes(pixels)
