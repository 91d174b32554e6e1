from __future__ import annotations

import pytest

from diffmark.training import curriculum


def test_a_gate_opens_at_its_step_and_a_negative_one_never():
    assert [curriculum.is_open(step, 500) for step in (0, 499, 500, 501)] == [False, False, True, True]
    assert not curriculum.is_open(10**9, -1)


def test_groups_open_in_order():
    curriculum.check_order(0, 500, -1)
    curriculum.check_order(0, 0, 0)  # the paper's collapse: allowed, and left to the guard
    with pytest.raises(ValueError, match="imperceptibility opens at step 10, before that of reconstruction"):
        curriculum.check_order(20, 10, -1)
    with pytest.raises(ValueError, match="robustness opens at step 5"):
        curriculum.check_order(0, 10, 5)


def test_sigma_falls_on_a_cosine():
    values = [curriculum.sigma_target(step, 0.10, 0.05, 5000) for step in (0, 1250, 2500, 5000, 9999)]
    assert values == pytest.approx([0.10, 0.0926777, 0.075, 0.05, 0.05])
    assert curriculum.sigma_target(0, 0.3, 0.2, 0) == 0.2


def test_the_kl_weight_ramps_over_a_thousand_steps():
    values = [curriculum.kl_weight(step, 0.001, 0.05, 1000) for step in (0, 500, 1000, 2000)]
    assert values == pytest.approx([0.001, 0.0255, 0.05, 0.05])


def test_attacks_ramp_from_their_gate():
    values = [curriculum.attack_strength(step, 0.1, 1.0, 100, gate=50) for step in (0, 50, 100, 150, 500)]
    assert values == pytest.approx([0.1, 0.1, 0.55, 1.0, 1.0])


def test_pretraining_noise_rises():
    assert curriculum.pretraining_noise(250, 0.0, 1.0, 1000) == 0.25


def test_the_learning_rate_warms_up_and_decays_to_its_floor():
    rates = [curriculum.learning_rate(step, 5e-5, 500, 10_000) for step in (0, 249, 499, 500, 9999)]
    assert rates == pytest.approx([1e-7, 2.5e-5, 5e-5, 5e-5, 1e-6])
    falling = [curriculum.learning_rate(step, 5e-5, 500, 10_000) for step in range(500, 10_000)]
    assert falling == sorted(falling, reverse=True)
    assert curriculum.learning_rate(3, 1e-3, 0, 4) == pytest.approx(1e-6)
