"""From latents through pixels and back: L_regen on the bridge, and the robustness stage."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from diffmark.latent import vae
from diffmark.latent.codec import Codec
from diffmark.training import curriculum, losses, robustness
from diffmark.training.config import CompressionConfig, TrainingConfig
from diffmark.training.draws import Draws

Terms = dict[str, Tensor]


def through_pixels(
    codec: Codec,
    autoencoder: nn.Module,
    pixels: Tensor,
    secrets: Tensor,
    config: TrainingConfig,
    step: int,
    draws: Draws,
) -> tuple[Terms, Terms]:
    """L_regen on the bridge and L_robust: some images are attacked, the others only make the round trip.

    All of them are encoded and decoded in one batch.
    """
    kept = len(pixels) - attacked_images(config, step, len(pixels))
    groups = [("regen", slice(0, kept), pixels[:kept])] if config.paths.regen_on == "bridge" and kept else []
    if kept < len(pixels):
        settings = config.robustness
        names = draws.choose(list(settings.attacks), min(settings.kinds, len(pixels) - kept))
        strength = curriculum.attack_strength(
            step, settings.strength_start, 1.0, settings.warmup, config.gates.robustness
        )
        for name, rows in zip(names, torch.arange(kept, len(pixels)).tensor_split(len(names)), strict=True):
            drawn = settings.attacks[name] * strength * draws.uniform()
            attacked = robustness.attack(name, pixels[rows], drawn, draws.torch)
            groups.append((name, slice(int(rows[0]), int(rows[-1]) + 1), attacked))
    if not groups:
        return {}, {}
    if groups[0][0] == "regen":
        groups[0] = ("regen", groups[0][1], compressed(groups[0][2], config.compression, draws))
    z = round_trip(autoencoder, torch.cat([group for _, _, group in groups]), config.paths.rounding)
    read = codec.decoder(z).split([len(group) for _, _, group in groups])
    figures = {
        f"accuracy_{name}": losses.bit_accuracy(logits, secrets[rows]).mean()
        for (name, rows, _), logits in zip(groups, read, strict=True)
    }
    terms: Terms = {}
    attacked_from = 0
    if groups[0][0] == "regen":
        terms["regen"] = losses.cross_entropy(read[0], secrets[:kept])
        attacked_from = 1
    if attacked_from < len(groups):
        terms["robust"] = losses.cross_entropy(torch.cat(read[attacked_from:]), secrets[kept:])
    return terms, figures


def compressed(pixels: Tensor, settings: CompressionConfig, draws: Draws) -> Tensor:
    """The last pictures of (B, 3, H, W) through a learned codec at a drawn quality; noise for its rounding."""
    count = round(settings.share * len(pixels))
    if not count:
        return pixels
    lowest, highest = settings.qualities
    quality = pixels.new_full((count,), lowest + (highest - lowest) * draws.uniform())
    kept = len(pixels) - count
    through = _compressor(settings.model).to(pixels.device)(pixels[kept:], quality, draws.torch)[0]
    return torch.cat([pixels[:kept], through])


@functools.cache
def _compressor(name: str) -> nn.Module:
    assert name == "vista"  # what CompressionConfig says
    from diffmark.vista import load_compression

    return load_compression().requires_grad_(False).train()  # in training it adds noise, which gradients pass


def attacked_images(config: TrainingConfig, step: int, count: int) -> int:
    """How many of a batch are attacked at a step: a share that ramps up from the gate tau_rob."""
    settings, gate = config.robustness, config.gates.robustness
    if not curriculum.is_open(step, gate) or not config.weights.robust:
        return 0
    share = curriculum.ramp(step, settings.share_start, settings.share_end, settings.warmup, gate)
    return max(round(share * count), 1)


def round_trip(autoencoder: nn.Module, pixels: Tensor, rounding: bool) -> Tensor:
    """Algorithm 2: E(clamp(x, -1, 1)), through 8 bits if asked for."""
    pixels = robustness.round_to_bytes(pixels) if rounding else pixels.clamp(-1, 1)
    return vae.encode(autoencoder, pixels)
