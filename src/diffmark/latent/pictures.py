"""Between pictures of 8 bits and the pixels that networks see: floats in [-1, 1], (B, 3, H, W)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffmark.images import ImageLike, read_image

Levels = NDArray[np.uint8]


def to_pixels(images: Sequence[ImageLike], size: tuple[int, int] | None = None) -> Tensor:
    """Images as pixels, resized to (height, width) if given; else they keep the size that they share."""
    pictures = [read_image(image) for image in images]
    return torch.from_numpy(np.stack([(p.resized(size) if size else p).pixels() for p in pictures]))


def to_levels(pixels: Tensor) -> Levels:
    """Pixels as (B, H, W, 3) uint8, clipped and rounded."""
    levels = ((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte()
    return np.ascontiguousarray(levels.permute(0, 2, 3, 1).cpu().numpy())


def to_images(pixels: Tensor) -> list[Image.Image]:
    """Pixels as pictures: what a PNG file of each holds."""
    return [Image.fromarray(levels) for levels in to_levels(pixels)]


def from_levels(levels: Levels) -> Tensor:
    """(B, H, W, 3) uint8 as pixels, channels last in memory."""
    return torch.from_numpy(np.array(levels)).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def psnr(first: Tensor, second: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each picture in dB, (B, 3, H, W) -> (B,)."""
    return psnr_of((first - second).square().flatten(1).mean(dim=1))


def psnr_of(error: Tensor) -> Tensor:
    """10 log10(2^2 / MSE) in dB of mean squared errors of pixels, whose range is 2."""
    return 10 * torch.log10(4 / error.clamp_min(1e-12))
