"""Differentiable attacks on pixels for the robustness stage (kornia).

Each takes pixels (B, 3, H, W) in [0, 1], a strength in [0, 1] and a generator, and returns pixels in [0, 1] of
the same shape. The strongest ones are the paper's (JPEG quality 90 to 30, blur kernel 3 to 11) or, where it gives
none, those of the evaluation. One strength a call: an attack is drawn for a group of images, not for each.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Attack = Callable[[Tensor, float, torch.Generator], Tensor]


def jpeg(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """JPEG of quality 90 - 60 strength, with rounding that lets gradients pass."""
    from kornia.enhance import jpeg_codec_differentiable

    quality = torch.full((len(pixels),), 90.0 - 60.0 * strength, device=pixels.device)
    return jpeg_codec_differentiable(pixels, quality)


def blur(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur of kernel size 3 + 8 strength."""
    from kornia.filters import gaussian_blur2d

    kernel = 3 + 2 * round(4 * strength)
    sigma = 0.3 * ((kernel - 1) / 2 - 1) + 0.8  # the usual sigma of a kernel size
    return gaussian_blur2d(pixels, (kernel, kernel), (sigma, sigma))


def noise(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Gaussian noise of sigma 0.1 strength."""
    draw = torch.randn(pixels.shape, generator=generator).to(pixels)
    return pixels + 0.1 * strength * draw


def brightness(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Pixels times 1 + strength, or divided by it."""
    return pixels * _either(1 + strength, generator)


def contrast(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Distance from the mean grey times 1 + strength, or divided by it."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=pixels.device).view(1, 3, 1, 1)
    mean = (pixels * weights).sum(dim=1, keepdim=True).mean(dim=(2, 3), keepdim=True)
    return mean + (pixels - mean) * _either(1 + strength, generator)


def rotation(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """About the centre by up to 45 strength degrees either way, black outside."""
    from kornia.geometry.transform import rotate

    angle = 45 * strength * (1 if _coin(generator) else -1)
    return rotate(pixels, torch.full((len(pixels),), float(angle), device=pixels.device))


def resized_crop(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """A square of 1 - strength / 2 of the area, anywhere, resized back."""
    height, width = pixels.shape[-2:]
    side = (1 - 0.5 * strength) ** 0.5
    rows, columns = max(round(side * height), 1), max(round(side * width), 1)
    top = _integer(height - rows + 1, generator)
    left = _integer(width - columns + 1, generator)
    part = pixels[..., top : top + rows, left : left + columns]
    return F.interpolate(part, (height, width), mode="bilinear", antialias=True)


def erasing(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """One black square of 0.25 strength of the area, anywhere."""
    height, width = pixels.shape[-2:]
    side = (0.25 * strength) ** 0.5
    rows, columns = round(side * height), round(side * width)
    top = _integer(height - rows + 1, generator)
    left = _integer(width - columns + 1, generator)
    mask = torch.ones(1, 1, height, width, device=pixels.device, dtype=pixels.dtype)
    mask[..., top : top + rows, left : left + columns] = 0
    return pixels * mask


def resize(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Down to 1 - strength / 2 of each side and back."""
    height, width = pixels.shape[-2:]
    scale = 1 - 0.5 * strength
    small = F.interpolate(
        pixels, (max(round(scale * height), 1), max(round(scale * width), 1)), mode="bilinear", antialias=True
    )
    return F.interpolate(small, (height, width), mode="bilinear", antialias=True)


ATTACKS: dict[str, Attack] = {
    "jpeg": jpeg,
    "blur": blur,
    "noise": noise,
    "brightness": brightness,
    "contrast": contrast,
    "rotation": rotation,
    "resized_crop": resized_crop,
    "erasing": erasing,
    "resize": resize,
}


def attack(name: str, pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """An attack by name on pixels in [-1, 1]; the result is clamped to that range."""
    return ATTACKS[name]((pixels.clamp(-1, 1) + 1) / 2, strength, generator).clamp(0, 1) * 2 - 1


def round_to_bytes(pixels: Tensor) -> Tensor:
    """Pixels in [-1, 1] as an 8-bit file has them; gradients pass as if nothing had been rounded."""
    pixels = pixels.clamp(-1, 1)
    rounded = ((pixels + 1) * 127.5).round() / 127.5 - 1
    return pixels + (rounded - pixels).detach()


def _coin(generator: torch.Generator) -> bool:
    return bool(torch.rand((), generator=generator) < 0.5)


def _either(factor: float, generator: torch.Generator) -> float:
    return factor if _coin(generator) else 1 / factor


def _integer(below: int, generator: torch.Generator) -> int:
    return int(torch.randint(max(below, 1), (), generator=generator))
