from __future__ import annotations

import pytest

from diffmark.training.config import GuardConfig
from diffmark.training.guards import CollapseGuard, StoppedError, check_finite


def test_the_loss_that_is_no_number_is_named():
    check_finite(3, {"lcm": 0.7})
    with pytest.raises(StoppedError, match="step 12: the loss 'prvl' is inf"):
        check_finite(12, {"lcm": 0.7, "prvl": float("inf")})


def test_a_vanishing_delta_stops_the_run_at_once():
    guard = CollapseGuard(GuardConfig(delta_floor=0.01))
    guard.check(0, 0.5, 0.02)
    with pytest.raises(StoppedError, match="step 1: delta has collapsed, its standard deviation is 0.005"):
        guard.check(1, 0.9, 0.005)


def test_chance_is_tolerated_during_the_warm_up_only():
    guard = CollapseGuard(GuardConfig(after=10, window=4))
    for step in range(10):
        guard.check(step, 0.5, 1.0)
    with pytest.raises(StoppedError, match="accuracy was 0.500 over the last 4 steps"):
        guard.check(10, 0.5, 1.0)


def test_a_window_that_is_not_full_decides_nothing_and_survives_a_checkpoint():
    config = GuardConfig(after=0, window=3)
    first = CollapseGuard(config)
    first.check(5, 0.5, 1.0)
    first.check(6, 0.5, 1.0)
    second = CollapseGuard(config)
    second.load_state_dict(first.state_dict())
    with pytest.raises(StoppedError):
        second.check(7, 0.5, 1.0)
