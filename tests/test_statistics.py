from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from diffmark.statistics import (
    auc,
    clopper_pearson,
    empirical_threshold,
    family_wise,
    match_tail,
    match_threshold,
    per_try,
    roc,
    soft_cost,
    soft_distribution,
    soft_tail,
    soft_weights,
    tpr_at_fpr,
)


@pytest.mark.parametrize(("fpr", "matches"), [(1e-3, 45), (1e-6, 51), (1e-9, 56)])
def test_thresholds_of_64_bits(fpr, matches):
    assert match_threshold(64, fpr) == matches
    assert match_tail(matches, 64) <= fpr < match_tail(matches - 1, 64)


@given(st.integers(1, 256).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_binomial_tail_agrees_with_scipy(case):
    matches, length = case
    assert match_tail(matches, length) == pytest.approx(stats.binom.sf(matches - 1, length, 0.5), rel=1e-9)


def test_what_a_short_secret_cannot_reach():
    with pytest.raises(ValueError, match="cannot reach"):
        match_threshold(16, 1e-6)
    with pytest.raises(ValueError, match="0 ... 64"):
        match_tail(65, 64)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=12))
def test_soft_distribution_agrees_with_enumeration(weights):
    patterns = np.array(np.meshgrid(*[[0, 1]] * len(weights))).reshape(len(weights), -1)
    costs = np.array(weights) @ patterns
    for cost in range(sum(weights) + 1):
        assert soft_tail(cost, weights) == pytest.approx((costs <= cost).mean(), abs=1e-12)


def test_soft_test_with_equal_weights_is_the_hard_test():
    for errors in (0, 5, 20):
        assert soft_tail(errors, [1] * 64) == pytest.approx(match_tail(64 - errors, 64), rel=1e-12)


def test_soft_p_values_are_calibrated_in_simulation():
    """Margins of an unmarked image against random secrets: p <= alpha in a share alpha of the cases."""
    rng = np.random.default_rng(0)
    hits, trials = 0, 4000
    for _ in range(trials // 100):
        margins = rng.normal(0.3, 2, 64)  # a biased decoder: random secrets make the test exact all the same
        weights = soft_weights(margins)
        distribution = soft_distribution(weights)
        for secret in rng.integers(0, 2, (100, 64)):
            hits += distribution[soft_cost(margins > 0, secret, weights)] <= 0.05
    low, high = clopper_pearson(hits, trials, 0.999)
    assert low < 0.05 < high + 0.005  # a discrete test may stay a little under its level


def test_soft_test_is_stronger_than_hard_on_noisy_bits():
    rng = np.random.default_rng(1)
    hard, soft = [], []
    for _ in range(200):
        secret = rng.integers(0, 2, 64)
        margins = (2 * secret - 1) * 1.0 + rng.normal(0, 1.2, 64)
        bits, weights = margins > 0, soft_weights(margins)
        hard.append(match_tail(int((bits == secret).sum()), 64))
        soft.append(soft_tail(soft_cost(bits, secret, weights), weights))
    assert np.mean(np.log(soft)) < np.mean(np.log(hard))


def test_soft_weights():
    assert soft_weights([0, 1, 2, 3, 100]).tolist() == [0, 8, 15, 15, 15]
    assert soft_weights([0.0, 0, 0]).tolist() == [1, 1, 1]
    assert soft_weights([0.0, 0, 0, 5]).tolist() == [0, 0, 0, 15]
    assert soft_weights(np.ones((2, 3, 4))).shape == (2, 3, 4)
    with pytest.raises(ValueError, match="finite"):
        soft_weights([np.nan, 1])
    with pytest.raises(ValueError, match="not negative"):
        soft_distribution([-1, 2])
    with pytest.raises(ValueError, match="not be negative"):
        soft_tail(-1, [1])


def test_family_wise_and_its_inverse():
    assert family_wise(1e-20, 10**8) == pytest.approx(1e-12)
    assert family_wise(0.5, 2) == pytest.approx(0.75)
    assert family_wise(1.0, 5) == 1.0
    assert family_wise(0.0, 5) == 0.0
    assert family_wise(per_try(1e-6, 10**8), 10**8) == pytest.approx(1e-6)
    for bad in (
        lambda: family_wise(0.1, 0),
        lambda: family_wise(2, 1),
        lambda: per_try(0.1, 0),
        lambda: per_try(0, 1),
    ):
        with pytest.raises(ValueError, match="must|lies"):
            bad()


def test_clopper_pearson_agrees_with_scipy():
    for hits, trials in [(0, 10), (10, 10), (3, 17), (999, 1000)]:
        expected = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
        assert clopper_pearson(hits, trials) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="successes"):
        clopper_pearson(3, 2)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=60),
    st.sampled_from([0.001, 0.01, 0.1, 0.5]),
)
def test_empirical_threshold_never_exceeds_the_rate_and_is_the_smallest(negatives, fpr):
    scores = np.array(negatives, float)
    threshold = empirical_threshold(scores, fpr)
    assert (scores > threshold).mean() <= fpr
    lower = scores[scores < threshold]
    if lower.size:
        assert (scores > lower.max()).mean() > fpr


def test_tpr_at_fpr_is_strict_about_ties():
    rate = tpr_at_fpr([5, 5, 9], [5] * 100, 0.01)
    assert rate.value == pytest.approx(1 / 3)
    assert rate.low < rate.value < rate.high
    assert rate.threshold == 5


def test_roc_and_auc():
    rng = np.random.default_rng(0)
    positives, negatives = rng.integers(3, 12, 200), rng.integers(0, 9, 300)
    fpr, tpr = roc(positives, negatives)
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    expected = stats.mannwhitneyu(positives, negatives).statistic / (200 * 300)
    assert auc(positives, negatives) == pytest.approx(expected)
    with pytest.raises(ValueError, match="at least one"):
        roc([], [1])
    with pytest.raises(ValueError, match="at least one"):
        empirical_threshold([], 0.1)


def test_no_torch():
    code = "import sys, diffmark, diffmark.statistics, diffmark.secret; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
