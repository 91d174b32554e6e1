"""What makes marked pictures differ from unmarked ones as pictures, instead of from their own unmarked twin.

A mark may be any content that the model could have painted. One loss keeps it there: `statistics_distance` compares
what pictures have of detail, in busy places and in quiet ones, and of steps on the grid of latents.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diffmark.training.perception import SENSITIVITY, VISIBLE, bands_of, opponent

PLACE = 9  # side, in a band's own pixels, of the places whose detail is compared
GRID = 8  # pixels a latent


def statistics_distance(marked: Tensor, clean: Tensor) -> Tensor:
    """Mean over pictures (B, 3, H, W) of the squared distance of their statistics in nats: |S(m) - S(c)|^2."""
    return (picture_statistics(marked) - picture_statistics(clean).detach()).square().sum(1).mean()


def picture_statistics(pixels: Tensor) -> Tensor:
    """S of pictures (B, 3, H, W) in [-1, 1], (B, 31).

    With e = the mean of b^2 around each place, for every octave b of luma and two opponent colours, and f the
    contrast that is just seen in it: log(f^2 + mean e), which busy places decide, and mean log(f^2 + e), which
    quiet ones do. And log of the mean step of luma across the 8-pixel grid over the mean step elsewhere.
    """
    found = []
    for band, detail in enumerate(bands_of(opponent(pixels))):
        seen = detail.new_tensor([VISIBLE / colour[band] for colour in SENSITIVITY]).view(1, 3, 1, 1)
        side = min(PLACE, *detail.shape[-2:])
        around = F.avg_pool2d(detail.square(), side, stride=max(side // 2, 1))
        found += [
            (seen.square() + around.mean((2, 3), keepdim=True)).log().flatten(1),
            (seen.square() + around).log().mean((2, 3)),
        ]
    return torch.cat([*found, grid_steps(pixels)[:, None]], 1)


def grid_steps(pixels: Tensor) -> Tensor:
    """Log of the mean step of luma across the grid of latents over the mean step elsewhere, (B,); 0 is unseen."""
    luma = opponent(pixels)[:, 0]
    across, elsewhere = luma.new_zeros(len(luma)), luma.new_zeros(len(luma))
    for axis in (1, 2):
        steps = luma.diff(dim=axis).abs().mean(3 - axis)
        on_grid = torch.arange(1, steps.shape[1] + 1, device=steps.device) % GRID == 0
        across, elsewhere = across + steps[:, on_grid].mean(1), elsewhere + steps[:, ~on_grid].mean(1)
    return ((across + 1e-4) / (elsewhere + 1e-4)).log()
