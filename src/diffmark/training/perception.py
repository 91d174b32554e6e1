"""How much of a difference between two pictures is seen: opponent colours, contrast sensitivity, local masking.

The difference is split into luma and two opponent colours, each into bands an octave wide, as the eye does. A band
counts by how sensitive the eye is to it, fine colour least; and less where the clean picture has contrast of its
own in that band, which hides it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Luma, red against green, yellow against blue, of pixels in [-1, 1].
OPPONENT = ((0.299, 0.587, 0.114), (0.5, -0.5, 0.0), (0.25, 0.25, -0.5))

# Sensitivity to bands from the finest octave (2 to 4 pixels a cycle) to the coarsest and what is below it, at about
# 32 pixels a degree: luma is seen best at 2 to 8 cycles a degree, colours below 2 (Mullen 1985).
SENSITIVITY = ((0.5, 1.0, 1.0, 0.7, 0.4), (0.1, 0.3, 0.7, 1.0, 1.0), (0.05, 0.2, 0.5, 0.8, 0.8))

VISIBLE = 0.02  # contrast that is just seen on an even background, in [-1, 1]
MASKING = 0.6  # how much of a picture's own contrast adds to that


def perceptual_difference(marked: Tensor, clean: Tensor) -> Tensor:
    """Mean squared visible difference of pixels (B, 3, H, W) in [-1, 1]; 1 is a difference that is just seen.

    sum over colours and bands of mean (s d / (c0 + m |c|))^2: sensitivity s, difference d, the clean picture's mean
    contrast |c| around each place.
    """
    clean = clean.detach()
    total = marked.new_zeros(())
    bands = zip(bands_of(opponent(marked - clean)), bands_of(opponent(clean)), strict=True)
    for band, (difference, background) in enumerate(bands):
        sensitivity = marked.new_tensor([colour[band] for colour in SENSITIVITY]).view(1, 3, 1, 1)
        contrast = F.avg_pool2d(background.abs(), 3, stride=1, padding=1, count_include_pad=False)
        if band == len(SENSITIVITY[0]) - 1:  # mean colours are no contrast
            contrast = torch.zeros_like(contrast)
        total = total + (sensitivity * difference / (VISIBLE + MASKING * contrast)).square().mean()
    return total


def opponent(pixels: Tensor) -> Tensor:
    return torch.einsum("ij,bjhw->bihw", pixels.new_tensor(OPPONENT), pixels)


def bands_of(x: Tensor) -> list[Tensor]:
    """A Laplacian pyramid: octaves from fine to coarse, each half the size of the one before, and what is left."""
    bands = []
    for _ in range(len(SENSITIVITY[0]) - 1):
        coarse = F.avg_pool2d(x, 2)
        bands.append(x - F.interpolate(coarse, size=x.shape[-2:], mode="bilinear"))
        x = coarse
    return [*bands, x]
