"""The decoder's last stage: takes the grid of 8 x 8 tiles out of a decoded picture.

The autoencoder's straight path paints every latent as a flat tile, and what is added to latents shows as coloured
tiles. This stage sees over tiles' edges: it works at a quarter and at half of the size on the picture, on the mean
colours of the tiles in a smooth (bicubic) interpolation, and on the latents.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.vista.blocks import residual_blocks

TILE = 8


class Refinement(nn.Module):
    """Pictures (B, 3, H, W) and their latents (B, C, H/8, W/8) to better pictures; untrained it is the identity."""

    def __init__(self, latent_channels: int, colours: int, channels: int, layers: int) -> None:
        super().__init__()
        self.from_picture = nn.Conv2d(4 * colours + colours, channels, 3, padding=1)  # half size
        self.from_latents = nn.Conv2d(latent_channels, 2 * channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1)  # quarter size
        self.coarse = nn.Sequential(*residual_blocks(2 * channels, layers))
        self.up = nn.Sequential(nn.Conv2d(2 * channels, 4 * channels, 1), nn.PixelShuffle(2))
        self.fine = nn.Sequential(*residual_blocks(channels, layers))
        self.to_pixels = nn.Sequential(nn.Conv2d(channels, 4 * colours, 3, padding=1), nn.PixelShuffle(2))
        nn.init.zeros_(self.to_pixels[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.to_pixels[0].bias)  # type: ignore[arg-type]

    def forward(self, picture: Tensor, latents: Tensor) -> Tensor:
        means = F.interpolate(F.avg_pool2d(picture, TILE), scale_factor=TILE // 2, mode="bicubic")
        fine = self.from_picture(torch.cat([F.pixel_unshuffle(picture, 2), means], 1))
        coarse = self.down(fine) + F.interpolate(self.from_latents(latents), scale_factor=2, mode="bilinear")
        fine = fine + self.up(self.coarse(coarse))
        return picture + self.to_pixels(self.fine(fine))
