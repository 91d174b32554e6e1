from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffmark.injection import MODES, Injection

falling = st.lists(st.floats(0, 1), min_size=1, max_size=60).map(lambda times: sorted(times, reverse=True))


@given(falling, st.sampled_from(MODES), st.floats(0.01, 5), st.floats(0.05, 1))
def test_the_shares_add_up_to_the_dose(times, mode, dose, start):
    weights = Injection(mode, dose, start).weights(times)
    assert weights.shape == (len(times) + 1,)
    total = dose * len(times) if mode == "paper" else dose
    assert weights.sum() == pytest.approx(total)
    assert (weights >= -1e-12).all()


@pytest.mark.parametrize("mode", ["persistent", "late", "final"])
def test_four_steps_and_fifty_agree_at_equal_noise_levels(mode):
    injection = Injection(mode, 1.5, start=0.4)
    few, many = np.linspace(1, 0, 5)[:-1], np.linspace(1, 0, 101)[:-1]
    for k, time in enumerate(few):
        delivered = injection.weights(few)[:k].sum()  # before the step at `time`
        index = int(np.argmin(np.abs(many - time)))
        assert delivered == pytest.approx(injection.weights(many)[:index].sum())


def test_each_mode_by_hand():
    times = [1.0, 0.75, 0.5, 0.25]
    assert Injection("persistent").weights(times) == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    assert Injection("paper").weights(times) == pytest.approx([1, 1, 1, 1, 0])
    assert Injection("mean", 2).weights(times) == pytest.approx([0.5, 0.5, 0.5, 0.5, 0])
    assert Injection("late", start=0.5).weights(times) == pytest.approx([0, 0, 0.5, 0.5, 0])
    assert Injection("late", start=0.4).weights(times) == pytest.approx([0, 0, 0.375, 0.625, 0])
    assert Injection("final", 3).weights(times) == pytest.approx([0, 0, 0, 0, 3])


def test_a_run_that_starts_late_still_gets_the_whole_dose():
    assert Injection("persistent").weights([0.4, 0.2]) == pytest.approx([0.8, 0.2, 0])


def test_bad_arguments():
    with pytest.raises(ValueError, match="unknown injection mode 'early'"):
        Injection("early")
    with pytest.raises(ValueError, match="finite"):
        Injection(dose=float("inf"))
    for start in (0, 1.5):
        with pytest.raises(ValueError, match="start"):
            Injection(start=start)
    for times in ([], [0.1, 0.2], [1.5, 0.2], [[0.1]]):
        with pytest.raises(ValueError, match="times must fall"):
            Injection().weights(times)
