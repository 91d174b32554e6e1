"""Vista's autoencoder: a KL autoencoder that works on 4 x 4 patches, fast on a CPU.

Full-resolution layers are what costs on a CPU, so pixels are folded into channels first and convolutions run
at 1/4 and 1/8 of the size only. It has the interface of diffusers' `AutoencoderKL`, and a pipeline loads it
through its import path in `model_index.json`.
"""

from collections.abc import Callable
from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from diffmark.vista.blocks import ChannelNorm, residual_blocks
from diffmark.vista.refinement import Refinement

PATCH = 4


class PatchAutoencoder(ModelMixin, ConfigMixin):
    """A KL autoencoder with 8 x 8 pixels a latent.

    `block_out_channels` are the channels at full, half, quarter and eighth size; there are no layers at half
    size, the entry stands so that pipelines count three halvings. Images are (B, 3, H, W) in [-1, 1], H and W
    multiples of 8; latents (B, latent_channels, H/8, W/8), to be multiplied by `config.scaling_factor`.
    `refinement_channels` is the width of the decoder's last stage (diffmark.vista.refinement), 0 for a decoder
    without one.
    """

    _supports_gradient_checkpointing = False

    @register_to_config
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 3,
        latent_channels: int = 4,
        block_out_channels: tuple[int, int, int, int] = (8, 8, 64, 128),
        layers_per_block: int = 2,
        sample_size: int = 256,
        scaling_factor: float = 1.0,
        force_upcast: bool = False,
        refinement_channels: int = 0,
        refinement_layers: int = 2,
    ) -> None:
        super().__init__()
        full, _, quarter, eighth = block_out_channels
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(PATCH),
            nn.Conv2d(in_channels * PATCH**2, quarter, 3, padding=1),
            *residual_blocks(quarter, layers_per_block),
            nn.Conv2d(quarter, eighth, 4, stride=2, padding=1),
            *residual_blocks(eighth, layers_per_block),
            ChannelNorm(eighth),
            nn.SiLU(),
            nn.Conv2d(eighth, 2 * latent_channels, 3, padding=1),  # mean and log variance
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(latent_channels, eighth, 3, padding=1),
            *residual_blocks(eighth, layers_per_block),
            nn.Conv2d(eighth, quarter * 4, 3, padding=1),
            nn.PixelShuffle(2),
            *residual_blocks(quarter, layers_per_block),
            ChannelNorm(quarter),
            nn.SiLU(),
            nn.Conv2d(quarter, full * PATCH**2, 3, padding=1),
            nn.PixelShuffle(PATCH),
            nn.SiLU(),
            nn.Conv2d(full, out_channels, 3, padding=1),  # hides the seams between patches
        )
        # Straight linear paths carry the mean colours, so that the networks are left with the detail. At the
        # start there is nothing else: three channels hold the mean colour of 8 x 8 pixels, a coarse mosaic.
        self.encoder_skip = nn.Sequential(
            nn.PixelUnshuffle(8), nn.Conv2d(in_channels * 64, 2 * latent_channels, 1, bias=False)
        )
        self.decoder_skip = nn.Sequential(
            nn.Conv2d(latent_channels, out_channels * 64, 1, bias=False), nn.PixelShuffle(8)
        )
        self._start_as_mosaic(latent_channels, in_channels)
        self.refinement = (
            Refinement(latent_channels, out_channels, refinement_channels, refinement_layers)
            if refinement_channels
            else None
        )
        self.use_slicing = False

    @torch.no_grad()
    def _start_as_mosaic(self, latent_channels: int, colours: int) -> None:
        last: Any = self.encoder[-1]
        to_latents: Any = self.encoder_skip[1].weight
        to_pixels: Any = self.decoder_skip[0].weight
        for tensor in (*last.parameters(), *self.decoder[-1].parameters(), to_latents, to_pixels):
            tensor.zero_()
        last.bias[latent_channels:] = -6.0  # log variance
        for colour in range(min(latent_channels, colours)):
            pixels = slice(64 * colour, 64 * (colour + 1))
            to_latents[colour, pixels] = 1.5 / 64
            to_pixels[pixels, colour] = 1 / 1.5

    def enable_slicing(self) -> None:
        """Encode and decode one image at a time, to save memory."""
        self.use_slicing = True

    def disable_slicing(self) -> None:
        """Encode and decode a batch at once."""
        self.use_slicing = False

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """Images (B, 3, H, W) in [-1, 1] to a Gaussian over latents (B, C, H/8, W/8)."""
        if x.shape[-1] % 8 or x.shape[-2] % 8:
            raise ValueError(f"image: height and width must be multiples of 8, got {tuple(x.shape[-2:])}")
        posterior = DiagonalGaussianDistribution(
            self._sliced(lambda part: self.encoder(part) + self.encoder_skip(part), x)
        )
        return AutoencoderKLOutput(latent_dist=posterior) if return_dict else (posterior,)

    def decode(self, z: Tensor, return_dict: bool = True, generator: torch.Generator | None = None) -> Any:
        """Unscaled latents (B, C, h, w) to images (B, 3, 8h, 8w) near [-1, 1]; `generator` is not used."""
        sample = self._sliced(self._decoded, z)
        return DecoderOutput(sample=sample) if return_dict else (sample,)

    def _decoded(self, z: Tensor) -> Tensor:
        picture = self.decoder(z) + self.decoder_skip(z)
        return picture if self.refinement is None else self.refinement(picture, z)

    def forward(
        self,
        sample: Tensor,
        sample_posterior: bool = False,
        return_dict: bool = True,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Encode and decode."""
        posterior = self.encode(sample, return_dict=False)[0]
        z = posterior.sample(generator) if sample_posterior else posterior.mode()
        return self.decode(z, return_dict=return_dict)

    def _sliced(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self.use_slicing and len(x) > 1:
            return torch.cat([network(part) for part in x.split(1)])
        return network(x)
