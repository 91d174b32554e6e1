"""Families: latent spaces that models share, and the package that brings a family's models, if one does.

A package of models is imported by its name when it is first needed, so that nothing here depends on it. It offers
`model_names()`, `load_pipeline(name)`, `load_autoencoder()` and `autoencoder_class()`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Family:
    """A latent space: who shares it, what its own autoencoder looks like, and where its models are."""

    name: str
    members: str
    vae_classes: tuple[str, ...] = ("AutoencoderKL",)
    channels: int | None = None
    scaling_factor: float | None = None  # None: the class says enough
    package: str | None = None

    def models(self) -> Any:
        """The package of its models."""
        if self.package is None:
            raise ValueError("no package brings models of this family: name a pipeline's folder or hub id")
        return importlib.import_module(self.package)


_KNOWN = (
    Family("sd", "SD 1.x and 2.x, LCM, PixArt-alpha", channels=4, scaling_factor=0.18215),
    Family("sdxl", "SDXL, PixArt-Sigma, AuraFlow, HunyuanDiT, Kolors", channels=4, scaling_factor=0.13025),
    Family("sd3", "SD3, SD3.5", channels=16, scaling_factor=1.5305),
    Family("flux", "FLUX.1, Chroma, HiDream, Lumina 2, Z-Image", channels=16, scaling_factor=0.3611),
    Family("flux2", "FLUX.2, ERNIE-Image, Ideogram 4", ("AutoencoderKLFlux2",)),
    Family(
        "wan21", "Qwen-Image, Krea 2, Wan 2.1", ("AutoencoderKLQwenImage", "AutoencoderKLWan"), channels=16
    ),
    Family("wan22", "Wan 2.2 5B", ("AutoencoderKLWan",), channels=48),
    Family("dc-ae", "Sana", ("AutoencoderDC",), channels=32),
    Family("ltx", "LTX-Video", ("AutoencoderKLLTXVideo",)),
    Family("vista", "Vista and its siblings", ("PatchAutoencoder",), package="diffmark.vista"),
)
FAMILIES = {family.name: family for family in _KNOWN}


def family_of(model: str) -> Family | None:
    """The family that brings a model of this name (a folder of the same name comes first)."""
    if Path(model).exists():
        return None
    return next((f for name, f in FAMILIES.items() if f.package and model.startswith(name)), None)


def import_autoencoders() -> None:
    """Import the autoencoder classes of all packages: diffusers finds only those that are."""
    for family in FAMILIES.values():
        if family.package:
            family.models().autoencoder_class()
