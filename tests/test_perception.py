"""The visible difference: coarse colour is seen, fine colour is not, and a busy background hides."""

from __future__ import annotations

import math

import pytest
import torch

from diffmark.training.perception import perceptual_difference


def wave(pixels_a_cycle, colour=(1.0, 1.0, 1.0), size=64):
    line = torch.sin(2 * math.pi * torch.arange(size) / pixels_a_cycle)
    return 0.05 * torch.tensor(colour).view(1, 3, 1, 1) * line.expand(1, 3, size, size)


FLAT = torch.zeros(1, 3, 64, 64)
RED_GREEN = (1.0, -0.51, 0.0)  # its luma is 0


def test_nothing_is_nothing_and_twice_is_four_times():
    assert perceptual_difference(FLAT, FLAT) == 0
    once, twice = (float(perceptual_difference(FLAT + k * wave(8), FLAT)) for k in (1, 2))
    assert twice == pytest.approx(4 * once, rel=1e-4)


def test_luma_is_seen_in_the_middle_and_colour_where_it_is_coarse():
    luma = {cycle: perceptual_difference(FLAT + wave(cycle), FLAT) for cycle in (2.5, 6, 64)}
    assert luma[6] > luma[2.5]
    assert luma[6] > luma[64]
    fine, coarse = (perceptual_difference(FLAT + wave(cycle, RED_GREEN), FLAT) for cycle in (3, 32))
    assert coarse > 10 * fine


def test_a_busy_ground_hides():
    busy = 0.5 * torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    hidden = perceptual_difference(busy + wave(4), busy)
    assert hidden < 0.3 * perceptual_difference(FLAT + wave(4), FLAT)


def test_the_gradient_goes_to_the_marked_picture_alone():
    marked, clean = wave(8).requires_grad_(), torch.zeros(1, 3, 64, 64, requires_grad=True)
    perceptual_difference(marked, clean).backward()
    assert marked.grad.abs().sum() > 0
    assert clean.grad is None
