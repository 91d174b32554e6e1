"""Vista: the embedded text-to-image family, a small latent diffusion model in diffusers' own format."""

from diffmark.vista.library import (
    load_autoencoder,
    load_classifier,
    load_compression,
    load_pipeline,
    model_digest,
    model_names,
)

__all__ = [
    "load_autoencoder",
    "load_classifier",
    "load_compression",
    "load_pipeline",
    "model_digest",
    "model_names",
]
