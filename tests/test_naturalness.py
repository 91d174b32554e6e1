"""Statistics of pictures, and learned compression in training."""

from __future__ import annotations

import pytest
import torch

from diffmark.training import pixels
from diffmark.training.config import CompressionConfig, read_config
from diffmark.training.draws import Draws
from diffmark.training.naturalness import (
    grid_steps,
    picture_statistics,
    statistics_distance,
)


def smooth(count=2, side=64, seed=0):
    """Pictures of coarse detail, in [-1, 1]."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) - 0.5
    return torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")


def test_the_same_content_elsewhere_is_as_natural():
    clean = smooth()
    assert statistics_distance(clean, clean) == 0
    noise = 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(1))
    assert statistics_distance(clean.flip(-1), clean) < 0.1 * statistics_distance(clean + noise, clean)


def test_detail_in_quiet_places_counts_more_than_in_busy_ones():
    torch.manual_seed(0)
    half = torch.zeros(1, 3, 64, 64)
    half[..., 32:] = 0.5 * torch.randn(1, 3, 64, 32)
    noise = 0.1 * torch.randn(1, 3, 64, 64)
    quiet, busy = noise.clone(), noise.clone()
    quiet[..., 32:], busy[..., :32] = 0, 0
    assert statistics_distance(half + quiet, half) > 3 * statistics_distance(half + busy, half)


def test_steps_on_the_grid_of_latents():
    clean = smooth()
    tiles = (
        torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(2))
        .repeat_interleave(8, 2)
        .repeat_interleave(8, 3)
    )
    marked = clean + 0.05 * tiles
    assert (grid_steps(marked) > grid_steps(clean) + 0.1).all()
    moved = clean + 0.05 * tiles.roll((4, 4), (2, 3))
    assert (grid_steps(moved) < grid_steps(marked)).all()
    assert picture_statistics(clean).shape == (2, 31)


def test_gradients_reach_the_marked_picture_alone():
    marked, clean = smooth(seed=1).requires_grad_(), smooth().requires_grad_()
    statistics_distance(marked, clean).backward()
    assert marked.grad.isfinite().all()
    assert marked.grad.abs().sum() > 0
    assert clean.grad is None


def test_learned_compression_takes_the_last_pictures_and_passes_gradients():
    images = smooth(4).requires_grad_()
    through = pixels.compressed(images, CompressionConfig("vista", 0.5), Draws(0, 0))
    assert torch.equal(through[:2], images[:2])
    assert 0 < (through[2:] - images[2:]).abs().mean() < 0.5
    through[2:].square().sum().backward()
    assert (images.grad[2:].abs().sum((1, 2, 3)) > 0).all()
    assert pixels.compressed(images, CompressionConfig(), Draws(0, 0)) is images


def test_compression_needs_a_model_and_a_share(tmp_path):
    for text in ('model = "vista"', "share = 0.5", 'model = "other"\nshare = 0.5'):
        file = tmp_path / "run.toml"
        file.write_text(f"[compression]\n{text}\n")
        with pytest.raises(ValueError, match="compression"):
            read_config(file)
