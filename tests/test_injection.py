from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffmark.latent.injection import MODES, Injection

falling = st.lists(st.floats(0, 1), min_size=1, max_size=60).map(lambda times: sorted(times, reverse=True))


@given(falling, st.sampled_from(MODES), st.floats(0.01, 5), st.floats(0.05, 1), st.floats(0, 0.9))
def test_the_shares_add_up_to_the_dose(times, mode, dose, start, end):
    dose = min(dose, 1.0) if mode == "initial" else dose
    weights = Injection(mode, dose, start, end * start).weights(times)
    assert weights.shape == (len(times) + 1,)
    total = dose * len(set(times)) if mode == "paper" else dose
    assert weights.sum() == pytest.approx(total)
    assert (weights >= -1e-12).all()


@pytest.mark.parametrize("mode", ["persistent", "late", "final"])
def test_four_steps_and_fifty_agree_at_equal_noise_levels(mode):
    injection = Injection(mode, 1.5, start=0.4)
    few, many = np.linspace(1, 0, 5)[:-1], np.linspace(1, 0, 51)[:-1]
    for k, time in enumerate(few):
        delivered = injection.weights(few)[:k].sum()  # before the step at `time`
        passed = int((many > time + 1e-9).sum())  # steps of fifty that start above `time`
        shares = injection.weights(many)
        if np.isclose(many, time).any():  # 1 and 0.5 are knots of both
            assert delivered == pytest.approx(shares[:passed].sum())
        else:  # the last of these steps reaches below `time`
            assert shares[: passed - 1].sum() < delivered + 1e-9 < shares[:passed].sum() + 1e-8


def test_two_stage_solvers_get_no_share_where_they_only_probe():
    """Heun runs at t0, t1, t1, t2, t2 ...: at the first of two equal times it returns to where it came from."""
    times = [1.0, 0.6, 0.6, 0.3, 0.3]
    assert Injection("paper").weights(times) == pytest.approx([1, 0, 1, 0, 1, 0])
    assert Injection("mean").weights(times) == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3, 0])
    assert Injection("persistent").weights(times) == pytest.approx([0.4, 0, 0.3, 0, 0.3, 0])


def test_each_mode_by_hand():
    times = [1.0, 0.75, 0.5, 0.25]
    assert Injection("persistent").weights(times) == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    assert Injection("paper").weights(times) == pytest.approx([1, 1, 1, 1, 0])
    assert Injection("mean", 2).weights(times) == pytest.approx([0.5, 0.5, 0.5, 0.5, 0])
    assert Injection("late", start=0.5).weights(times) == pytest.approx([0, 0, 0.5, 0.5, 0])
    assert Injection("late", start=0.4).weights(times) == pytest.approx([0, 0, 0.375, 0.625, 0])
    assert Injection("late", start=0.75, end=0.25).weights(times) == pytest.approx([0, 0.5, 0.5, 0, 0])
    assert Injection("late", start=0.75, end=0.3).weights(times) == pytest.approx([0, 5 / 9, 4 / 9, 0, 0])
    assert Injection("final", 3).weights(times) == pytest.approx([0, 0, 0, 0, 3])


def test_a_run_that_starts_late_still_gets_the_whole_dose():
    assert Injection("persistent").weights([0.4, 0.2]) == pytest.approx([0.8, 0.2, 0])
    assert Injection("late", start=0.8, end=0.3).weights([0.2, 0.1]) == pytest.approx([1, 0, 0])


def test_bad_arguments():
    with pytest.raises(ValueError, match="unknown injection mode 'early'"):
        Injection("early")
    with pytest.raises(ValueError, match="finite"):
        Injection(dose=float("inf"))
    for start in (0, 1.5):
        with pytest.raises(ValueError, match="start"):
            Injection(start=start)
    for end in (-0.1, 0.2, 0.5):
        with pytest.raises(ValueError, match="end is a diffusion time"):
            Injection(start=0.2, end=end)
    for times in ([], [0.1, 0.2], [1.5, 0.2], [[0.1]]):
        with pytest.raises(ValueError, match="times must fall"):
            Injection().weights(times)
