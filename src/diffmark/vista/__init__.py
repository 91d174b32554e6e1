"""Vista: the embedded text-to-image family, a small latent diffusion model in diffusers' own format."""

from diffmark.vista.library import (
    autoencoder_class,
    load_autoencoder,
    load_classifier,
    load_compression,
    load_pipeline,
    model_digest,
    model_names,
)

__all__ = [
    "autoencoder_class",
    "load_autoencoder",
    "load_classifier",
    "load_compression",
    "load_pipeline",
    "model_digest",
    "model_names",
]
