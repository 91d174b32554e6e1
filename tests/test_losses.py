from __future__ import annotations

import math

import pytest
import torch

from diffmark.training import losses


def test_cross_entropy_of_two_bits():
    logits = torch.tensor([[[0.0, math.log(3)], [math.log(4), 0.0]]])  # p(1) = 3/4, p(0) = 4/5
    value = losses.cross_entropy(logits, torch.tensor([[1, 1]]))
    assert value.item() == pytest.approx(-(math.log(3 / 4) + math.log(1 / 5)) / 2)


def test_magnitude_is_taken_an_image():
    delta = torch.stack([torch.tensor([1.0, -1.0]), torch.tensor([3.0, -3.0])]).view(2, 1, 1, 2)
    deviations = [math.sqrt(2), 3 * math.sqrt(2)]  # of two numbers, unbiased
    expected = sum((s - 0.5) ** 2 for s in deviations) / 2
    assert losses.magnitude(delta, 0.5).item() == pytest.approx(expected)


def test_kl_is_zero_at_the_standard_normal_and_known_elsewhere():
    zero = torch.zeros(1, 1, 1, 2)
    assert losses.kl_divergence(zero, zero).item() == 0
    mean, log_variance = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, math.log(2)]]]])
    expected = -0.5 * ((1 + 0 - 1 - 1) + (1 + math.log(2) - 0 - 2)) / 2
    assert losses.kl_divergence(mean, log_variance).item() == pytest.approx(expected)


def test_orthogonality_is_the_mean_cosine_of_pairs():
    delta = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, -2.0]]).view(3, 1, 1, 2)
    pairs = [math.sqrt(0.5), 0.0, -math.sqrt(0.5)]
    assert losses.orthogonality(delta).item() == pytest.approx(sum(pairs) / 3, abs=1e-6)
    assert losses.orthogonality(delta, squared=True).item() == pytest.approx(1 / 3)


def test_orthogonality_needs_two_images():
    with pytest.raises(ValueError, match="needs two, got 1"):
        losses.orthogonality(torch.ones(1, 4, 8, 8))


def test_latent_fidelity_is_the_mean_square_and_leaves_the_clean_path_alone():
    marked = torch.tensor([1.0, 3.0], requires_grad=True)
    clean = torch.tensor([0.0, 1.0], requires_grad=True)
    value = losses.latent_fidelity(marked, clean)
    value.backward()
    assert value.item() == pytest.approx((1 + 4) / 2)
    assert clean.grad is None


def test_peak_region_finds_the_worst_square():
    clean = torch.zeros(2, 3, 40, 40)
    marked = clean.clone()
    marked[0, :, 4:8, 4:8] = 1.0  # 16 pixels of 1 in one region
    marked[1, 0, 30, 30] = -3.0  # one channel of three: a mean of 1
    assert losses.peak_region(marked, clean).item() == pytest.approx((16 / 1024 + 1 / 1024) / 2)
    with pytest.raises(ValueError, match="regions of 32x32 pixels, the images are only 16x16"):
        losses.peak_region(marked[..., :16, :16], clean[..., :16, :16])


def test_low_frequency_is_the_ratio_of_mean_powers():
    size = 32
    across = torch.arange(size) * 2 * math.pi / size
    low, high = (
        torch.cos(3 * across).expand(1, 1, size, size),
        torch.cos(15 * across).expand(1, 1, size, size),
    )
    inside = sum(  # positions of the disk of radius 10, counted by hand
        math.hypot(y, x) <= 10 for y in range(-16, 16) for x in range(-16, 16)
    )
    assert losses.low_frequency(high).item() == pytest.approx(0, abs=1e-6)
    assert losses.low_frequency(low).item() == pytest.approx(size * size / inside, rel=1e-5)
    assert losses.low_frequency(low + high).item() == pytest.approx(size * size / inside / 2, rel=1e-5)


def test_negative_entropy_is_lowest_where_the_decoder_knows_nothing():
    assert losses.negative_entropy(torch.zeros(2, 3, 2)).item() == pytest.approx(-math.log(2))
    sure = torch.tensor([[[0.0, math.log(3)]]])
    assert losses.negative_entropy(sure).item() == pytest.approx(
        0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    )


def test_bit_accuracy_is_a_bit():
    logits = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])  # read 10, 11
    assert losses.bit_accuracy(logits, torch.tensor([[1, 0], [0, 1]])).tolist() == [0.5, 1.0]
