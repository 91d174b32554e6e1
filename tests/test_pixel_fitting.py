"""How the pixel layer's writer is fitted to copies of its picture, and the means that it and the reader take."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import uniform_filter

from diffmark.pixel.arrivals import COPIES
from diffmark.pixel.fitting import evened, next_chroma, next_gain
from diffmark.pixel.keys import PUBLIC_KEY
from diffmark.pixel.spectrum import box
from diffmark.pixel.tones import Tones


@pytest.mark.parametrize("shape", [(512, 512), (7, 300), (3, 3)])
@pytest.mark.parametrize("size", [1, 5, 11, 73])
def test_means_over_windows_are_scipys(shape: tuple[int, int], size: int) -> None:
    plane = np.random.default_rng(0).normal(100, 30, shape).astype(np.float32)
    assert np.allclose(box(plane, size), uniform_filter(plane, size, mode="reflect"), atol=2e-4)


def test_amplitudes_go_to_bits_that_would_be_lost_at_the_same_cost() -> None:
    rng = np.random.default_rng(1)
    scores = 0.5 + rng.normal(0, 0.5, (1, 2, 64)).repeat(3, axis=0)  # three copies say alike
    costs, planes = np.array([2.0, 1.0]), np.array([0, 0])
    found = evened(np.ones((2, 64)), scores, np.ones(3), costs, planes)
    total = scores[0].sum(axis=0)
    assert found[:, total < 0].mean() > 1.2 * found[:, total > 2].mean()
    assert costs @ np.mean(found**2, axis=1) == pytest.approx(costs.sum())
    assert np.mean(found[1]) > np.mean(found[0])  # the band that says as much for half the cost


def test_gain_stays_within_the_bounds_of_quality() -> None:
    assert next_gain(1.0, 15, 1.0, 80, 90) == pytest.approx(1)
    assert next_gain(1.0, 15, 9.0, 85, 90) < 1  # no worse than 85, with a margin
    assert next_gain(1.0, 5, 0.1, 80, 90) > 1  # no better than 90
    assert next_chroma(1.0, 0.1) > 1 > next_chroma(1.0, 5.0)


def test_tones_respond_to_their_own_waves() -> None:
    tones = Tones(PUBLIC_KEY)
    amplitudes = np.linspace(0.5, 2, len(tones.phases))
    response = tones.responses(tones.waves(amplitudes)) / (512 * 512 / 2)
    assert np.allclose(response, amplitudes, atol=0.05)
    noise = np.random.default_rng(2).normal(size=(512, 512)).astype(np.float32)
    assert tones.level(noise) == pytest.approx(np.full(len(amplitudes), 512), rel=0.9)


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_frames(name: str) -> None:
    picture = Image.fromarray(np.random.default_rng(3).integers(0, 256, (90, 160, 3), np.uint8))
    frame, present = COPIES[name](picture)
    assert frame.shape == (3, 512, 512)
    assert present is None or 0.45 < present.mean() < 0.55
