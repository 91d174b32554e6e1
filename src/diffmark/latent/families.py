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
    """What identifies a family's own autoencoder: its scaling factor, or its class."""

    scaling_factor: float | None = None
    vae_class: str | None = None
    package: str | None = None  # where its models are

    def models(self) -> Any:
        """The package of its models."""
        if self.package is None:
            raise ValueError("no package brings models of this family: name a pipeline's folder or hub id")
        return importlib.import_module(self.package)


FAMILIES = {
    "sd": Family(0.18215),
    "sdxl": Family(0.13025),
    "sd3": Family(1.5305),
    "flux": Family(0.3611),
    "vista": Family(vae_class="PatchAutoencoder", package="diffmark.vista"),
}


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
