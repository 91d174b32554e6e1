"""From photographs and autoencoders to what a codec of a family is trained on; kept on disk for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from diffmark.provenance import weights_digest
from diffmark.training.channel import SIGMA, Channel, measure_channel
from diffmark.training.family import FamilyConfig, Ground
from diffmark.training.lessons import Lessons, make_lessons
from diffmark.vae import check_family
from diffmark.vista.training.data import to_tensor

PROBES = 16  # photographs that the channel is measured on


def prepare_ground(
    config: FamilyConfig, photographs: Path, teacher: nn.Module, others: Sequence[nn.Module], cache: Path
) -> Ground:
    """Latents and channel are the teacher's; crops go through it and the others in turn."""
    for autoencoder in (teacher, *others):
        check_family(config.codec, autoencoder)
    lessons = make_lessons(teacher, photographs, config.every, cache)
    side = lessons.latents.shape[-1]
    if (config.codec.height, config.codec.width) != (2 * side, 2 * side):
        raise ValueError(f"hosts are mosaics of {2 * side}x{2 * side} latents: set codec.height and width so")
    channel = channel_of(teacher, lessons, cache)
    return Ground(torch.from_numpy(lessons.latents), channel, (teacher, *others))


def channel_of(teacher: nn.Module, lessons: Lessons, cache: Path) -> Channel:
    """The teacher's channel, measured on some of the lessons' pictures or taken from `cache`."""
    file = cache / f"channel-{weights_digest(teacher)}-{SIGMA:g}.pt"
    if file.is_file():
        return Channel(**torch.load(file, weights_only=True))
    chosen = lessons.pictures[:: max(len(lessons.pictures) // PROBES, 1)][:PROBES]
    channel = measure_channel(teacher, (to_tensor(picture[None]) for picture in chosen))
    torch.save(channel.state(), file)
    return channel
