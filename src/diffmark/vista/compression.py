"""A learned image codec, of another architecture than the family's autoencoder, for regeneration attacks.

Strided convolutions with rounding in between (Balle et al. 2017, without the divisive normalisation), and a gain a
channel and quality in front of the rounding, so that one network serves all qualities (Cui et al. 2021): what an
attacker gets who sends a marked image through a neural compressor instead of the model's own autoencoder.
"""

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn


class CompressionAutoencoder(ModelMixin, ConfigMixin):
    """Images (B, 3, H, W) in [-1, 1], H and W multiples of 16, to integers (B, C, H/16, W/16) and back."""

    @register_to_config
    def __init__(self, width: int = 64, channels: int = 64, qualities: int = 7) -> None:
        super().__init__()
        self.qualities = qualities
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
        # Steps get finer with the quality; twice the gain halves the step of the rounding.
        self.log_gain = nn.Parameter(torch.linspace(0, 2, qualities)[:, None].repeat(1, channels))
        self.log_scale = nn.Parameter(torch.zeros(qualities, channels))  # of the Laplace prior of a channel

    def forward(
        self, images: Tensor, quality: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """The decoded images, and the bits a pixel that the integers would take (B,).

        `quality` (B,) runs from 1 (harsh) to `qualities`. In training, uniform noise stands for rounding, so that
        gradients pass; afterwards it rounds.
        """
        gain, scale = self._at(self.log_gain, quality), self._at(self.log_scale, quality)
        y = self.analysis(images) * gain
        y = y + torch.rand(y.shape, generator=generator) - 0.5 if self.training else y.round()
        bits = -torch.log2(self._probability(y, scale)).sum((1, 2, 3)) / (images.shape[2] * images.shape[3])
        return self.synthesis(y / gain), bits

    def _at(self, table: Tensor, quality: Tensor) -> Tensor:
        """exp of the table's line at a quality, between two lines in proportion, (B, C, 1, 1)."""
        place = (quality - 1).clamp(0, self.qualities - 1)
        below = place.long().clamp(max=max(self.qualities - 2, 0))
        above = (below + 1).clamp(max=self.qualities - 1)
        return torch.lerp(table[below], table[above], (place - below)[:, None].to(table)).exp()[
            :, :, None, None
        ]

    def _probability(self, y: Tensor, scale: Tensor) -> Tensor:
        """Mass of the Laplace prior on the unit interval around y."""

        def below(x: Tensor) -> Tensor:
            return 0.5 + 0.5 * x.sign() * (1 - torch.exp(-x.abs() / scale))

        return (below(y + 0.5) - below(y - 0.5)).clamp(min=1e-9)
