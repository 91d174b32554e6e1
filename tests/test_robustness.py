from __future__ import annotations

import pytest
import torch

from diffmark.training import robustness
from diffmark.training.robustness import ATTACKS


def picture(count=2, side=32):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0)) * 1.6 - 0.8


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_keep_shape_and_range_and_let_gradients_pass(name):
    pixels = picture().requires_grad_()
    attacked = robustness.attack(name, pixels, 0.7, draws())
    assert attacked.shape == pixels.shape
    assert attacked.min() >= -1
    assert attacked.max() <= 1
    assert (attacked - pixels).abs().mean() > 1e-3
    attacked.sum().backward()
    assert pixels.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "name", ["noise", "brightness", "contrast", "rotation", "resized_crop", "erasing", "resize"]
)
def test_strength_zero_changes_nothing(name):
    pixels = picture()
    torch.testing.assert_close(robustness.attack(name, pixels, 0.0, draws()), pixels, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ATTACKS)
def test_more_strength_does_more(name):
    pixels = picture(side=64)
    weak, strong = (robustness.attack(name, pixels, strength, draws()) for strength in (0.2, 1.0))
    assert (strong - pixels).square().mean() > (weak - pixels).square().mean()


@pytest.mark.parametrize("name", ATTACKS)
def test_the_same_draws_give_the_same_attack(name):
    first, second = (robustness.attack(name, picture(), 0.5, draws(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_the_largest_erasure_is_a_quarter():
    erased = robustness.erasing(torch.ones(1, 3, 64, 64), 1.0, draws())
    assert (erased == 0).float().mean().item() == pytest.approx(0.25)


def test_rounding_gives_bytes_and_passes_gradients():
    pixels = (picture() * 1.5).requires_grad_()
    rounded = robustness.round_to_bytes(pixels)
    levels = (rounded.detach() + 1) * 127.5
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    rounded.sum().backward()
    inside = pixels.detach().abs() < 1
    assert (pixels.grad[inside] == 1).all()
