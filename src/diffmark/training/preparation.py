"""From a run file to what training needs: the frozen models, latents of pictures, embeddings of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from diffmark.latent.vae import check_family, load_vae
from diffmark.mark.loading import load_pipeline
from diffmark.training.config import TrainingConfig
from diffmark.training.paths import Denoisers, Paths, freeze, load_denoisers, read_prompts
from diffmark.training.sources import Split, latents_of, open_pictures


@dataclass(frozen=True)
class Material:
    """The autoencoder, and the paths from delta to z0."""

    autoencoder: nn.Module
    paths: Paths


def open_vae(config: TrainingConfig, device: torch.device | str = "cpu") -> nn.Module:
    """The autoencoder of a run file: the embedded family's, or one of diffusers."""
    if config.model.vae == "vista":
        from diffmark.vista import load_autoencoder

        autoencoder: nn.Module = load_autoencoder()
    elif config.model.vae:
        autoencoder = load_vae(config.model.vae)
    elif config.model.pipeline:
        autoencoder = load_pipeline(config.model.pipeline).vae
    else:
        raise ValueError("the run file names no autoencoder: give model.vae, or model.pipeline")
    freeze(autoencoder)
    check_family(config.codec, autoencoder)
    return autoencoder.to(device)


def prepare(
    config: TrainingConfig, device: torch.device | str = "cpu", cache: Path | None = None
) -> Material:
    """Load, encode and embed all that a run needs; latents and painted scenes are kept in `cache`."""
    split = _pictures(config, cache)
    denoisers: Denoisers | None = None
    if config.dosing.injection.mode == "final" and not config.weights.regen_diff:
        autoencoder = open_vae(config, device)
    else:
        if not config.model.pipeline:
            mode = config.dosing.injection.mode
            what = "weights.regen_diff" if mode == "final" else f"injection mode {mode!r}"
            raise ValueError(f"{what} goes through a denoiser: give model.pipeline")
        prompts = read_prompts(config.data.prompts, split.train if split else None)
        denoisers, own = load_denoisers(config, prompts, device)
        autoencoder = open_vae(config, device) if config.model.vae else own
        check_family(config.codec, autoencoder)
    latents = held_out = None
    if split is not None and config.dosing.injection.mode in ("late", "final"):
        latents = latents_of(autoencoder, split.train, cache)
        held_out = latents_of(autoencoder, split.held_out, cache)
    return Material(autoencoder, Paths(config, latents, held_out, denoisers, device))


def prepare_hosts(
    config: TrainingConfig, device: torch.device | str = "cpu", cache: Path | None = None
) -> Tensor | None:
    """Latents of pictures for pretraining; None where it asks for none."""
    if not config.pretraining.host:
        return None
    split = _pictures(config, cache)
    if split is None:
        raise ValueError("pretraining.host lays delta on latents of pictures: give data.pictures")
    return latents_of(open_vae(config, device), split.train, cache)


def _pictures(config: TrainingConfig, cache: Path | None) -> Split | None:
    if not config.data.pictures:
        return None
    held_out = config.log.measure_images
    return open_pictures(config.data.pictures, config.codec.image_size, config.data.count, held_out, cache)
