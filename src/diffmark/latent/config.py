"""What it takes to build a codec's networks: the settings of `config.json` that say nothing of strength.

How much of a mark is added, and where, is in `diffmark.latent.dosing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_SIZE = 65536  # bound on every size in a config, so that a damaged file cannot ask for all memory


@dataclass(frozen=True)
class LatentConfig:
    """The secrets of a codec, and the latent space that it is for."""

    length: int = 64  # L, bits of a secret
    channels: int = 4  # c, latent channels
    height: int = 64  # h, native latent height
    width: int = 64  # w, native latent width
    family: str | None = None  # the latent space: sd, sdxl, sd3, flux, vista
    pixels_per_latent: int = 8  # the vae's downsampling factor

    def check_sizes(self, *more: int) -> None:
        """Raise unless these and all sizes of the latent space are whole numbers within bounds."""
        sizes = [self.length, self.channels, self.height, self.width, self.pixels_per_latent, *more]
        if any(isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= MAX_SIZE for n in sizes):
            raise ValueError(f"sizes are whole numbers from 1 to {MAX_SIZE}, got {sizes}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Native (height, width) in pixels: what the detector resizes an image to."""
        return self.height * self.pixels_per_latent, self.width * self.pixels_per_latent


@dataclass(frozen=True)
class CodecConfig(LatentConfig):
    """What it takes to build the paper's two networks."""

    embed_dim: int = 64  # d_e, width of bit embeddings and spatial basis
    encoder_widths: Sequence[int] = (32, 16, 8)
    decoder_widths: Sequence[int] = (16, 32, 64, 128, 256)  # one stride-2 block each
    decoder_hidden: Sequence[int] = (1024, 512)
    linear_readout: bool = False  # the decoder whitens latents and also reads each bit by one linear filter

    def __post_init__(self) -> None:
        for name in ("encoder_widths", "decoder_widths", "decoder_hidden"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not (self.encoder_widths and self.decoder_widths):
            raise ValueError("encoder_widths and decoder_widths need at least one entry")
        self.check_sizes(self.embed_dim, *self.encoder_widths, *self.decoder_widths, *self.decoder_hidden)
        if not isinstance(self.linear_readout, bool):
            raise ValueError(f"linear_readout is true or false, got {self.linear_readout!r}")
        shrink = 2 ** len(self.decoder_widths)
        if self.height % shrink or self.width % shrink:
            raise ValueError(
                f"latents of {self.height}x{self.width} cannot be halved {len(self.decoder_widths)} times; "
                f"height and width must be multiples of {shrink}, or decoder_widths shorter"
            )


@dataclass(frozen=True)
class NoiseConfig(LatentConfig):
    """What it takes to build the reader of a codec of initial noise."""

    reader_widths: Sequence[int] = (64, 128, 192)  # at full, half and quarter size
    common: int = 8  # directions that estimates of unmarked pictures share, left out of every estimate

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader_widths", tuple(self.reader_widths))
        self.check_sizes(*self.reader_widths)
        if self.common < 0:
            raise ValueError(f"common counts directions, got {self.common}")
        if len(self.reader_widths) != 3 or any(width % 8 for width in self.reader_widths):
            raise ValueError(f"reader_widths are three multiples of 8, got {self.reader_widths}")
        if self.height % 4 or self.width % 4:
            raise ValueError(f"latents of {self.height}x{self.width} cannot be halved twice")
