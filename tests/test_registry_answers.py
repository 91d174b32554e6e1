"""Answers: p-values are exact, the verdict keeps its family-wise rate, and says no when it should."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from diffmark.registry import Registry
from diffmark.statistics import clopper_pearson, family_wise, match_tail, soft_tail, soft_weights

LARGEST_DISTANCE = {10**2: 10, 10**4: 7, 10**6: 5, 10**8: 3}  # at family-wise 1e-6, from the design


@pytest.fixture
def registry() -> Registry:
    opened = Registry.open("sqlite://")
    opened.import_keys(np.random.default_rng(1).integers(0, 2**64, 5000, dtype=np.uint64))
    return opened


def logits_of(key: int, errors: list[int] = [], size: float = 4.0, noise: float = 0.3) -> np.ndarray:  # noqa: B006
    """Logits of a decoder that reads `key` with the given bits wrong and little sure of those."""
    rng = np.random.default_rng(key % 1000)
    signs = np.array([1.0 if key >> (63 - place) & 1 else -1.0 for place in range(64)])
    margins = signs * (size + noise * rng.standard_normal(64))
    margins[errors] *= -0.1
    return np.stack([np.zeros(64), margins], axis=1).astype(np.float32)


def key_of(registry: Registry, number: int) -> int:
    return int(registry.list_keys(after=number - 1, limit=1)[0])


def test_a_candidate_carries_exact_probabilities(registry: Registry) -> None:
    key = key_of(registry, 7)
    hard = registry.identify_bits(key ^ 0b111)
    best = hard.candidates[0]
    assert (best.principal, best.distance, best.cost) == ("key-7", 3, 3)
    assert best.p_value == match_tail(61, 64)
    assert best.family_wise == family_wise(best.p_value, 5000)
    assert best.score == 61 / 64
    assert not hard.soft
    assert hard.keys == 5000
    logits = logits_of(key, errors=[1, 5, 9])
    soft = registry.identify(logits)
    weights = soft_weights(logits[:, 1] - logits[:, 0])
    assert soft.soft
    assert soft.candidates[0].cost == int(weights[[1, 5, 9]].sum())
    assert soft.candidates[0].p_value == soft_tail(soft.candidates[0].cost, weights)
    assert soft.candidates[0].p_value < best.p_value  # the wrong bits were the unsure ones
    assert soft.candidates[0].distance == 3


def test_candidates_are_ranked(registry: Registry) -> None:
    answer = registry.identify(logits_of(12345), top=25)
    assert len(answer.candidates) == 25
    costs = [candidate.cost for candidate in answer.candidates]
    assert costs == sorted(costs)
    values = [candidate.p_value for candidate in answer.candidates]
    assert values == sorted(values)


def test_the_verdict_names_or_rejects(registry: Registry) -> None:
    key = key_of(registry, 9)
    named = registry.identify_bits(key)
    assert named.verdict
    assert str(named.verdict) == f"key-9, family-wise error {named.verdict.family_wise:.2g}"
    assert named.verdict.significant == 1
    rejected = registry.identify_bits(0)
    assert not rejected.verdict
    assert rejected.verdict.principal is None
    assert str(rejected.verdict).startswith("no significant match")
    assert registry.identify_bits(0, rate=None).verdict.principal == rejected.candidates[0].principal
    assert "closed set" in str(registry.identify_bits(0, rate=None).verdict)
    assert registry.identify_bits(key, rate=1e-30).verdict.principal is None
    with pytest.raises(ValueError, match="rate is a family-wise error between 0 and 1, got 2"):
        registry.identify_bits(key, rate=2)


@pytest.mark.parametrize(("keys", "distance"), LARGEST_DISTANCE.items())
def test_the_largest_accepted_distance_is_the_designs(keys: int, distance: int) -> None:
    assert family_wise(match_tail(64 - distance, 64), keys) <= 1e-6
    assert family_wise(match_tail(64 - distance - 1, 64), keys) > 1e-6


@pytest.mark.parametrize("hard", [False, True])
def test_the_family_wise_rate_holds_on_unmarked_images(hard: bool) -> None:
    """At a rate of 0.2, about a fifth of random decodings is wrongly named, and not more."""
    rng = np.random.default_rng(2)
    with Registry.open("sqlite://") as registry:
        registry.import_keys(rng.integers(0, 2**64, 1000, dtype=np.uint64))
        logits = rng.standard_normal((1000, 64, 2))
        named = sum(bool(a.verdict) for a in registry.identify_many(logits, 1, rate=0.2, hard=hard))
        low, high = clopper_pearson(named, 1000, 0.9999)
        assert low <= 0.2  # never more than stated
        assert hard or high >= 0.17  # hard distances are coarse: the test is then on the safe side


def test_nothing_within_the_limit_is_no_match(registry: Registry) -> None:
    answer = registry.identify_bits(0, within=1)
    assert answer.candidates == ()
    assert not answer.verdict


def test_evidence_of_several_images_adds_up() -> None:
    """At 25% wrong bits one image names nobody; several of one account together do."""
    rng = np.random.default_rng(8)
    with Registry.open("sqlite://") as registry:
        registry.import_keys(rng.integers(0, 2**64, 100_000, dtype=np.uint64))
        key = key_of(registry, 500)
        signs = np.array([1.0 if key >> (63 - place) & 1 else -1.0 for place in range(64)])
        margins = signs * 0.6745 + rng.standard_normal((8, 64))  # a quarter of the signs is wrong
        images = np.stack([np.zeros((8, 64)), margins], axis=-1)
        assert not any(answer.verdict for answer in registry.identify_many(images))
        together = registry.identify_together(images)
        assert together.verdict.principal == "key-500"
        with pytest.raises(ValueError, match="at least one detection"):
            registry.identify_together([])


def test_takes_detections_tensors_and_arrays(registry: Registry) -> None:
    key = key_of(registry, 3)
    logits = logits_of(key)
    expected = registry.identify(logits)
    for form in (
        SimpleNamespace(logits=logits),
        SimpleNamespace(logits=torch.from_numpy(logits)),
        logits[None],
        torch.from_numpy(logits)[None],
        logits.tolist(),
    ):
        assert registry.identify(form) == expected
    bits = [(key >> (63 - place)) & 1 for place in range(64)]
    for form in (key, f"{key:016x}", key.to_bytes(8, "big"), bits, np.array(bits)):
        assert registry.identify_bits(form).verdict.principal == "key-3"
    assert registry.identify_many([]) == []


def test_margins_of_zero_make_the_soft_search_the_hard_one(registry: Registry) -> None:
    answer = registry.identify(np.zeros((64, 2)))
    assert [c.distance for c in answer.candidates] == [c.cost for c in answer.candidates]


def test_an_answer_is_ready_for_json(registry: Registry) -> None:
    import json

    found = json.loads(json.dumps(registry.identify(logits_of(5)).to_dict()))
    assert set(found) == {"candidates", "verdict", "keys", "soft", "path", "answer"}
    assert set(found["candidates"][0]) >= {"principal", "distance", "p_value", "family_wise", "score"}
