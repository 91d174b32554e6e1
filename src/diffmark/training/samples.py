"""What a codec does at the moment: figures on held-out starts, and pictures of it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from diffmark.latent import vae
from diffmark.latent.codec import Codec
from diffmark.latent.pictures import psnr, to_images
from diffmark.training.config import TrainingConfig
from diffmark.training.draws import Draws
from diffmark.training.paths import Paths, Start
from diffmark.training.robustness import round_to_bytes

FIXED = 2**31  # the "step" of draws that stay the same over a run
AMPLIFIED = 10  # times, the difference of marked and clean


@torch.no_grad()
def marked_and_clean(
    codec: Codec, autoencoder: nn.Module, paths: Paths, start: Start, secrets: Tensor
) -> tuple[Tensor, Tensor]:
    """8-bit pixels in [-1, 1] with and without the mark, over the bridge from the same start."""
    delta = codec.delta(secrets)
    marked = vae.decode(autoencoder, paths.bridge(start, delta))
    clean = vae.decode(autoencoder, paths.bridge(start, None))
    return round_to_bytes(marked), round_to_bytes(clean)


@torch.no_grad()
def measure(
    codec: Codec, autoencoder: nn.Module, paths: Paths, config: TrainingConfig, batch: int = 16
) -> dict[str, float]:
    """Bit accuracy, of each bit too, and same-seed PSNR through 8-bit images, on starts that are not trained on."""
    right, ratios = [], []
    for number in range(0, config.log.measure_images, batch):
        draws = Draws(config.seed, FIXED, number, codec.device)
        count = min(batch, config.log.measure_images - number)
        secrets = draws.secrets(count, codec.config.length)
        start = paths.draw(draws, count, held_out=paths.held_out is not None)
        marked, clean = marked_and_clean(codec, autoencoder, paths, start, secrets)
        logits = codec.decode(vae.encode(autoencoder, marked))
        right.append((logits.argmax(dim=-1) == secrets).float())
        ratios.append(psnr(marked, clean))
    bits = torch.cat(right)
    return {
        "measured_accuracy": float(bits.mean()),
        "measured_worst_image": float(bits.mean(dim=1).min()),
        "measured_psnr": float(torch.cat(ratios).mean()),
        **{f"bit/{i:03d}": float(accuracy) for i, accuracy in enumerate(bits.mean(dim=0))},
    }


def save_samples(
    codec: Codec, autoencoder: nn.Module, paths: Paths, config: TrainingConfig, file: Path, count: int = 4
) -> None:
    """A row an image: marked, clean, their difference ten times over, delta as a heat map."""
    draws = Draws(config.seed, FIXED, 0, codec.device)
    secrets = draws.secrets(count, codec.config.length)
    start = paths.draw(draws, count, held_out=paths.held_out is not None)
    marked, clean = marked_and_clean(codec, autoencoder, paths, start, secrets)
    difference = ((marked - clean).abs() * AMPLIFIED).clamp(0, 2) - 1
    columns = [marked, clean, difference, heat_map(codec.delta(secrets), marked.shape[-2:])]
    grid = torch.cat([torch.cat(list(column), dim=1) for column in columns], dim=2)  # (3, B * H, 4 * W)
    file.parent.mkdir(parents=True, exist_ok=True)
    to_images(grid[None])[0].save(file)


def heat_map(delta: Tensor, size: torch.Size) -> Tensor:
    """Norm of delta over its channels, black over red and yellow to white, (B, C, h, w) -> (B, 3, H, W)."""
    norm = delta.norm(dim=1, keepdim=True)
    norm = norm / norm.amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12)
    norm = nn.functional.interpolate(norm, tuple(size), mode="nearest")
    return torch.cat([(3 * norm - shift).clamp(0, 1) for shift in (0, 1, 2)], dim=1) * 2 - 1
