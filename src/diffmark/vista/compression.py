"""A learned image codec, of another architecture than the family's autoencoder, for regeneration attacks.

Strided convolutions with rounding in between (Balle et al. 2017, without the divisive normalisation): what an
attacker gets who sends a marked image through a neural compressor instead of the model's own autoencoder.
"""

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn


class CompressionAutoencoder(ModelMixin, ConfigMixin):
    """Images (B, 3, H, W) in [-1, 1], H and W multiples of 16, to integers (B, C, H/16, W/16) and back."""

    @register_to_config
    def __init__(self, width: int = 64, channels: int = 64) -> None:
        super().__init__()
        self.analysis = nn.Sequential(
            nn.Conv2d(3, width, 8, stride=4, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 5, stride=2, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, channels, 5, stride=2, padding=2),
        )
        self.synthesis = nn.Sequential(
            nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(width, 3, 8, stride=4, padding=2),
        )
        self.log_scale = nn.Parameter(torch.zeros(channels))  # of the Laplace prior of each channel

    def forward(self, images: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The decoded images, and the bits a pixel that the integers would take (B,).

        In training, uniform noise stands for rounding, so that gradients pass; afterwards it rounds.
        """
        y = self.analysis(images)
        y = y + torch.rand(y.shape, generator=generator) - 0.5 if self.training else y.round()
        bits = -torch.log2(self._probability(y)).sum((1, 2, 3)) / (images.shape[2] * images.shape[3])
        return self.synthesis(y), bits

    def _probability(self, y: Tensor) -> Tensor:
        """Mass of the Laplace prior on the unit interval around y."""
        scale = self.log_scale.exp().view(1, -1, 1, 1)

        def below(x: Tensor) -> Tensor:
            return 0.5 + 0.5 * x.sign() * (1 - torch.exp(-x.abs() / scale))

        return (below(y + 0.5) - below(y - 0.5)).clamp(min=1e-9)
