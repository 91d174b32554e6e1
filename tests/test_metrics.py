from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from diffmark.metrics import (
    bias_figures,
    bit_figures,
    blockiness,
    detection_figures,
    frechet_distance,
    ms_ssim,
    psnr,
    quality_figures,
    share,
    ssim,
)
from diffmark.statistics import match_tail


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    base = rng.integers(20, 235, (192, 192, 3)).astype(np.uint8)
    return Image.fromarray(base), Image.fromarray(base + rng.choice([-4, 4], base.shape).astype(np.uint8))


def test_psnr_by_hand(pair):
    assert psnr(*pair) == pytest.approx(10 * np.log10(255**2 / 16))
    assert psnr(pair[0], pair[0]) == float("inf")


def test_structural_similarity_falls_with_noise(pair):
    a, b = pair
    assert ssim(a, a) == pytest.approx(1)
    assert ms_ssim(a, a) == pytest.approx(1)
    assert 0.9 < ssim(a, b) < 1
    rough = Image.fromarray(np.random.default_rng(1).integers(0, 255, (192, 192, 3)).astype(np.uint8))
    assert ssim(a, rough) < 0.1 < ms_ssim(a, b)
    with pytest.raises(ValueError, match="160 pixels"):
        ms_ssim(a.resize((100, 100)), b.resize((100, 100)))
    figures = quality_figures([a], [b])
    assert set(figures) == {"psnr", "psnr_min", "ssim", "ms_ssim"}
    assert "ms_ssim" not in quality_figures([a.resize((64, 64))], [b.resize((64, 64))])


def test_blockiness_is_seen_on_its_grid_only():
    tiles = np.random.default_rng(0).integers(100, 150, (16, 16)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    noise = np.random.default_rng(1).integers(0, 20, (128, 128)).astype(np.uint8)
    assert blockiness(Image.fromarray(noise)) == pytest.approx(1, abs=0.1)
    assert blockiness(Image.fromarray(tiles + noise)) > 1.5
    assert blockiness(Image.fromarray(np.roll(tiles + noise, 4, (0, 1)))) < 1
    assert blockiness(Image.new("RGB", (64, 64), "grey")) == 1


def test_frechet_distance_of_gaussians():
    """Means apart by m and standard deviations s, t: m^2 + (s - t)^2 in each dimension."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, (200_000, 2)), rng.normal(3, 2, (200_000, 2))
    assert frechet_distance(a, b) == pytest.approx(2 * (9 + 1), rel=0.02)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="one D"):
        frechet_distance(a, b[:, :1])


def test_bit_figures():
    secrets = np.zeros((2, 10), np.uint8)
    margins = np.full((2, 10), -1.0)
    margins[0, :3] = 1
    figures = bit_figures(margins, secrets)
    assert figures["bit_accuracy"] == pytest.approx(0.85)
    assert figures["ber_q50"] == pytest.approx(0.15)


def test_detection_figures_state_both_thresholds_and_only_what_the_negatives_bear():
    rng = np.random.default_rng(0)
    negatives = rng.binomial(64, 0.5, 10_000)
    positives = [64] * 50 + [45] * 50  # 45 is what 1e-3 takes
    tails = [match_tail(matches, 64) for matches in range(65)]
    p_values = [[tails[matches] for matches in scores] for scores in (positives, negatives)]
    figures = detection_figures(positives, negatives, (p_values[0], p_values[1]), 2.0**-64)
    assert figures["tpr_0.001_exact"]["value"] == 1.0
    assert figures["tpr_0.001_exact"]["observed_fpr"] < 0.002
    assert figures["tpr_1e-06_exact"]["value"] == 0.5
    assert figures["tpr_1e-06_exact"]["low"] < 0.5 < figures["tpr_1e-06_exact"]["high"]
    assert "tpr_0.001_empirical" in figures
    assert "tpr_1e-06_empirical" not in figures
    assert figures["auc"] == pytest.approx(1.0, abs=1e-3)
    presence = detection_figures([1.0, 2.0], [0.0] * 1000)
    assert "tpr_0.01_empirical" in presence
    assert "tpr_0.01_exact" not in presence
    rough = detection_figures([1.0], [0.0], ([2.0**-8], [1.0]), 2.0**-8)
    assert rough["tpr_0.01_exact"]["value"] == 1.0
    assert "tpr_0.001_exact" not in rough


def test_frechet_distance_with_fewer_images_than_dimensions():
    rng = np.random.default_rng(1)
    a = rng.normal(size=(5, 20))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a, a + 1) == pytest.approx(20)


def test_bias_figures_tell_fair_coins_from_leaning_and_coupled_ones():
    rng = np.random.default_rng(0)
    fair = rng.normal(size=(2000, 16))
    figures = bias_figures(fair)
    assert figures["largest_lean"] < figures["lean_chance"] * 1.2
    assert figures["largest_correlation"] < figures["correlation_chance"] * 1.2
    leaning, coupled = fair.copy(), fair.copy()
    leaning[:, 3] += 1
    coupled[:, 4] = coupled[:, 5]
    assert bias_figures(leaning)["largest_lean"] > 0.3
    assert bias_figures(coupled)["largest_correlation"] == pytest.approx(1)


def test_a_share_has_its_interval():
    found = share([True, True, False, False])
    assert found["value"] == 0.5
    assert found["low"] < 0.1
    assert found["high"] > 0.9
