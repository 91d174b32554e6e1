"""Where the trained baselines' weights are, and what their networks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diffmark import weights
from diffmark.secret import Bits


def baseline_folder(name: str) -> Path:
    """The folder with the weights of a baseline, by the method's name."""
    for folder in weights.folders("baselines"):
        if (folder / name / "config.json").exists():
            return weights.checked(folder / name)
    raise FileNotFoundError(
        f"{name}: no trained weights; install diffmark-weights (`make weights`), or train your own with "
        f"`diffmark baselines train {name} configs/baselines/{name}.toml` and put them into baselines/{name} of a "
        f"folder that {weights.FOLDERS_VARIABLE} names"
    )


def signs(secrets: Sequence[Bits] | NDArray[np.uint8] | Tensor) -> Tensor:
    """Bits as -1 and 1, (B, bits) float."""
    return 2 * torch.as_tensor(np.asarray(secrets), dtype=torch.float32) - 1


def conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """3x3 convolution, group norm and activation; stride 2 halves the size."""
    layers = [nn.Conv2d(before, after, 3, stride=stride, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
    return nn.Sequential(*layers)


def scaled_to(residual: Tensor, rms: float) -> Tensor:
    """A residual whose root mean square is `rms` in every image, (B, C, H, W)."""
    return residual * (rms / residual.square().mean(dim=(1, 2, 3), keepdim=True).add(1e-8).sqrt())
