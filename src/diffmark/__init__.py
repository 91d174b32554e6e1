"""DiffMark: multi-bit watermarks for frozen latent diffusion models."""

__version__ = "0.1.0"
