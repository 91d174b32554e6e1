"""Search: every path gives the answer of brute force, ties included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffmark.registry import Registry, index, scan
from diffmark.registry import query as queries
from diffmark.registry.index import MultiIndex, cheapest_reach, part_patterns, pattern_counts
from diffmark.registry.query import Query
from diffmark.registry.search import Searcher
from diffmark.statistics import soft_cost, soft_weights

pytest_plugins = ("postgres",)
SLOW_INPUT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def brute_force(keys: np.ndarray, query: Query, top: int, within: int | None) -> list[tuple[int, int]]:
    """(cost, key) of the best, by the definition, one bit at a time."""
    found = []
    for key in keys.tolist():
        difference = [(key ^ query.bits) >> (63 - place) & 1 for place in range(64)]
        cost = int(np.dot(difference, query.weights))
        if within is None or cost <= within:
            found.append((cost, key))
    return sorted(found)[:top]


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, Query, int, int | None]:
    """Keys at all distances from the query, hard and soft weights, with ties and with limits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bits = int(rng.integers(0, 2**64, dtype=np.uint64))
    kind = draw(st.sampled_from(["hard", "soft", "small", "zeros", "few"]))
    weights = {
        "hard": np.ones(64, np.int64),
        "soft": soft_weights(rng.standard_normal(64) + draw(st.sampled_from([0.0, 2.0]))),
        "small": rng.integers(1, 3, 64),
        "zeros": rng.integers(0, 16, 64) * (rng.random(64) < 0.8),
        "few": np.where(np.arange(64) % 8 == 0, 15, 1),
    }[kind]
    near = []
    for errors in draw(st.lists(st.integers(0, 64), max_size=25)):
        places = rng.choice(64, errors, replace=False)
        near.append(bits ^ sum(1 << int(place) for place in places))
    far = rng.integers(0, 2**64, draw(st.sampled_from([0, 1, 63, 64, 65, 500])), dtype=np.uint64)
    keys = np.unique(np.concatenate([np.array(near, np.uint64), far, np.array([0, 2**64 - 1], np.uint64)]))
    top = draw(st.integers(1, 12))
    within = draw(st.none() | st.integers(0, 200))
    return rng.permutation(keys), Query(bits, weights.astype(np.int64)), top, within


def pairs(hits: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(hits[0].tolist(), hits[1].tolist(), strict=True))


@SLOW_INPUT
@given(problems())
def test_every_path_gives_the_answer_of_brute_force(
    problem: tuple[np.ndarray, Query, int, int | None],
) -> None:
    keys, query, top, within = problem
    expected = brute_force(keys, query, top, within)
    assert pairs(scan.scan(keys, [query], top, within)[0]) == expected
    assert pairs(scan.scan_blocks([keys[:40], keys[40:]], query, top, within)) == expected
    hits = MultiIndex(keys).search(query, top, within, budget=1e7)
    assert hits is None or pairs(hits) == expected
    with Registry.open("sqlite://") as registry:
        registry.import_keys(keys)
        for cache in (True, False):
            searcher = Searcher(registry.store, cache, index=False)
            for path in (None, "scan", "numpy", "rows") if cache else (None,):
                found, _ = searcher.search([query, query], top, within, path)
                assert [pairs(hits) for hits in found] == [expected, expected], path


@SLOW_INPUT
@given(problems(), st.integers(1, 4))
def test_batches_answer_each_query_as_if_alone(
    problem: tuple[np.ndarray, Query, int, int | None], count: int
) -> None:
    keys, query, top, within = problem
    asked = [query] + [queries.from_bits(int(key)) for key in keys[:count]]
    together = scan.scan(keys, asked, top, within)
    assert [pairs(hits) for hits in together] == [brute_force(keys, q, top, within) for q in asked]


@pytest.mark.parametrize("soft", [False, True])
def test_the_index_finds_far_keys_among_many(soft: bool) -> None:
    """At a size where the index looks at a part of the keys only, and has to raise its reach step by step."""
    rng = np.random.default_rng(11)
    keys = np.unique(rng.integers(0, 2**64, 300_000, dtype=np.uint64))
    built = MultiIndex(keys)
    for errors in (0, 3, 7, 11, 15):
        bits = int(keys[errors]) ^ sum(1 << int(place) for place in rng.choice(64, errors, replace=False))
        weights = soft_weights(rng.standard_normal(64)) if soft else np.ones(64, np.int64)
        query = Query(bits, weights)
        for top, within in ((1, None), (10, None), (1000, 15)):
            expected = scan.scan_blocks(scan.blocks_of(keys), query, top, within)
            found = built.search(query, top, within)
            assert found is not None
            assert pairs(found) == pairs(expected)
    assert built.bytes / len(keys) < 140  # tables of bucket offsets weigh here; 24.3 at 1e8 keys


def test_rows_are_searched_through_their_indexes(url: str) -> None:
    """Straight from the database, hard and soft, and by reading all rows when the index would not pay."""
    rng = np.random.default_rng(12)
    keys = np.unique(rng.integers(0, 2**64, 20_000, dtype=np.uint64))
    with Registry.open(url, cache=False) as registry:
        registry.import_keys(keys)
        paths = set()
        for errors in (0, 4, 30):
            bits = int(keys[7]) ^ sum(1 << int(place) for place in rng.choice(64, errors, replace=False))
            for weights in (np.ones(64, np.int64), soft_weights(rng.standard_normal(64))):
                query = Query(bits, weights)
                for top, within in ((1, None), (3, 20), (10, None)):
                    (hits,), path = registry.searcher.search([query], top, within)
                    paths.add(path)
                    assert pairs(hits) == pairs(scan.scan_blocks([keys], query, top, within))
        assert paths == {"rows (index)", "rows (scan)"}


def test_a_key_issued_now_is_found_now(url: str) -> None:
    """On every path, also by another process's registry that has been open all the while."""
    for path in ("index", "scan", "numpy", "rows"):
        with Registry.open(url) as writer, Registry.open(url, index=True) as reader:
            for number in range(3):
                key = writer.issue(f"{path}-{number}")
                answer = reader.identify_bits(int(key), path=path)
                assert answer.verdict.principal == f"{path}-{number}"
                assert answer.candidates[0].distance == 0


def test_the_index_is_rebuilt_when_its_tail_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffmark.registry.search.MAX_UNINDEXED", 50)
    rng = np.random.default_rng(3)
    with Registry.open("sqlite://", index=True) as registry:
        for size in (400, 30, 30, 30):
            keys = rng.integers(0, 2**64, size, dtype=np.uint64)
            registry.import_keys(keys)
            assert registry.identify_bits(int(keys[0]), path="index").candidates[0].distance == 0
        assert registry.searcher.index is not None
        assert registry.searcher.index.count == 460


def test_the_planner_takes_the_index_for_large_registries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    monkeypatch.setattr("diffmark.registry.search.MAX_NUMPY_KEYS", 1000)
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 2**64, 300_000, dtype=np.uint64)
    with Registry.open(url, index=True) as registry:
        registry.import_keys(keys)
        near, far = int(keys[5]) ^ 0b1011, 12345
        assert registry.identify_bits(near, top=1).path == "index"
        logits = np.zeros((20, 64, 2))
        logits[:, :, 1] = rng.standard_normal((20, 64))
        assert (
            registry.identify_many(logits, top=200)[0].path == "scan"
        )  # too much to look at: one scan for all
        for bits in (near, far):
            by_index = registry.identify_bits(bits, path="index")
            assert by_index.candidates == registry.identify_bits(bits, path="scan").candidates
    with Registry.open(url) as registry:
        assert registry.identify_bits(near).path == "scan"


def test_without_numba_numpy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_kernels", [None])
    monkeypatch.setattr("diffmark.registry.search.MAX_NUMPY_KEYS", 0)
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 2**64, 1000, dtype=np.uint64)
    with Registry.open("sqlite://") as registry:
        registry.import_keys(keys)
        answer = registry.identify_bits(int(keys[3]))
        assert (answer.path, answer.candidates[0].principal) == ("numpy", "key-4")
        assert pairs(scan.scan(keys, [queries.from_bits(0)], 5)[0]) == brute_force(
            keys, queries.from_bits(0), 5, None
        )
    with pytest.raises(ImportError, match=r"diffmark\[registry\]"):
        MultiIndex(keys)


def test_population_counts_without_numpy_2(monkeypatch: pytest.MonkeyPatch) -> None:
    words = np.array([[0, 1], [2**64 - 1, 0x5555555555555555]], dtype=np.uint64)
    expected = [[0, 1], [64, 32]]
    assert queries.popcounts(words).tolist() == expected
    monkeypatch.delattr(np, "bitwise_count")
    assert queries.popcounts(words).tolist() == expected


@given(st.lists(st.integers(0, 15), min_size=1, max_size=10), st.integers(-1, 60), st.integers(-1, 60))
def test_patterns_of_a_part_are_all_those_within_the_cost(weights: list[int], low: int, high: int) -> None:
    values = np.arange(2 ** len(weights))
    costs = sum(((values >> (len(weights) - 1 - place)) & 1) * weight for place, weight in enumerate(weights))
    expected = values[(costs > low) & (costs <= high)]
    assert sorted(part_patterns(np.array(weights), low, high).tolist()) == expected.tolist()
    counts = pattern_counts(tuple(weights))
    if 0 <= high < len(counts):
        assert counts[high] == (costs <= high).sum()


def test_a_plan_that_looks_less_far_in_one_part_counts_no_key_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [index.Reach((0, 0, 4), 6, 0.0), index.Reach((3, 3, 1), 9, 0.0), index.Reach((5, 1, 2), 10, 0.0)]
    monkeypatch.setattr(index, "reaches", lambda *arguments: iter(plans))
    rng = np.random.default_rng(2)
    flips = [rng.choice(64, errors, replace=False) for errors in rng.integers(0, 11, 3000)]
    keys = np.unique(
        np.array([sum(1 << int(place) for place in places) for places in flips], dtype=np.uint64)
    )
    query = queries.from_bits(0)
    found = MultiIndex(keys).search(query, 4000, within=10)
    assert found is not None
    assert pairs(found) == brute_force(keys, query, 4000, 10)


def test_the_reach_certifies_what_it_says() -> None:
    counts = [pattern_counts((1,) * width) for width in index.WIDTHS]
    for goal in range(20):
        reach = cheapest_reach(counts, goal, 10**8, index.BUCKET_COST)
        assert sum(limit + 1 for limit in reach.limits) == goal + 1 == reach.certified + 1


@given(st.integers(0, 2**32))
def test_the_cost_is_the_soft_cost_of_the_statistics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    query = queries.from_margins(rng.standard_normal(64) ** 3)
    key = rng.integers(0, 2**64, 1, dtype=np.uint64)
    bits, other = ([(int(word) >> (63 - place)) & 1 for place in range(64)] for word in (query.bits, key[0]))
    assert soft_cost(bits, other, query.weights) == query.costs(key)[0]


def test_what_cannot_be_asked_is_refused() -> None:
    with Registry.open("sqlite://") as registry:
        with pytest.raises(Exception, match="holds no keys"):
            registry.identify_bits(1)
        registry.issue("a")
        with pytest.raises(ValueError, match="top must be at least 1, got 0"):
            registry.identify_bits(1, top=0)
        with pytest.raises(ValueError, match="within is a cost and must not be negative, got -1"):
            registry.identify_bits(1, within=-1)
        with pytest.raises(ValueError, match=r"path must be one of .* got 'magic'"):
            registry.identify_bits(1, path="magic")
        with pytest.raises(ValueError, match=r"64-bit keys.*\(48, 2\)"):
            registry.identify(np.zeros((48, 2)))
        with pytest.raises(ValueError, match=r"\(3, 64, 2\); for several images"):
            registry.identify(np.zeros((3, 64, 2)))
        with pytest.raises(ValueError, match="16 hex digits"):
            registry.identify_bits("abc")
        with pytest.raises(ValueError, match=r"margins have shape \(64,\)"):
            queries.from_margins(np.zeros(48))
