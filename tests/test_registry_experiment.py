"""The identification experiment: two tiers, closed and open set, checked against the analytic curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from diffmark.cli import app
from diffmark.registry import bench, experiment
from diffmark.registry import query as queries
from diffmark.registry.experiment import Decoded, run, simulate, win_probability
from diffmark.statistics import clopper_pearson, match_tail


def rows_of(decoded: Decoded, sizes: list[int], **options: float) -> dict[tuple[int, str], dict]:
    return {(row["keys"], row["ranking"]): row for row in run(decoded, sizes, **options)}  # type: ignore[arg-type]


def iid_top1(ber: float, size: int) -> float:
    """Closed-set top-1 of the hard ranking when each bit is wrong with probability `ber`: the analytic curve."""
    distribution = queries.from_bits(0).distribution
    errors = binom.pmf(np.arange(queries.LENGTH + 1), queries.LENGTH, ber)
    return float(sum(p * win_probability(distribution, d, size) for d, p in enumerate(errors)))


@pytest.mark.parametrize("ber", [0.1, 0.25, 0.4])
def test_independent_errors_follow_the_analytic_curve(ber: float) -> None:
    """Hard top-1 against theory for the error rate, and both rankings against theory for these images."""
    decoded = simulate(ber, 400, seed=1)
    rows = rows_of(decoded, [10, 400, 20_000], trials=3)
    for (size, ranking), row in rows.items():
        low, high = clopper_pearson(round(row["top1"] * row["images"]), row["images"], 0.9999)
        assert low <= row["expected_top1"] <= high, (size, ranking)
        if ranking == "hard" and size != 10:
            spread = 4 * np.sqrt(0.25 / len(decoded.secrets))  # of the images themselves
            assert abs(row["top1"] - iid_top1(ber, size)) < spread
        assert row["tier"] == (1 if size <= 400 else 2)
        assert row["images"] == 3 * min(size, 400)
    assert rows[20_000, "soft"]["top1"] >= rows[20_000, "hard"]["top1"] - 0.02


def test_simulated_errors_have_the_stated_rate() -> None:
    assert simulate(0.062, 2000, seed=3).ber == pytest.approx(0.062, abs=0.003)
    with pytest.raises(ValueError, match=r"between 0 and 0\.5, got 0\.7"):
        simulate(0.7, 1, seed=0)


def test_the_open_set_keeps_its_rate() -> None:
    """A loose rate, so that false names are seen: not more often than stated, with keys left out."""
    rows = rows_of(simulate(0.2, 500, seed=2), [500, 5000], trials=2, rate=0.1)
    for row in rows.values():
        assert row["named_though_absent_interval"][0] <= 0.1
        assert row["named"] <= row["top1"]
        assert row["named"] + row["wrongly_named"] <= 1
    assert rows[500, "soft"]["named"] > rows[500, "hard"]["named"]


def test_large_databases_are_searched_by_index_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = simulate(0.2, 40, seed=9)
    expected = list(run(decoded, [100_000], trials=1))
    monkeypatch.setattr(experiment, "INDEXED", 1000)
    assert list(run(decoded, [100_000], trials=1)) == expected


def test_clean_images_are_all_named() -> None:
    rows = rows_of(simulate(0.001, 50, seed=4), [10, 1000], trials=2)
    assert all(row["top1"] == row["named"] == 1.0 for row in rows.values())


def test_hopeless_images_are_named_by_chance_only() -> None:
    random = Decoded("noise", np.random.default_rng(0).standard_normal((200, 64, 2)).astype(np.float32),
                     np.random.default_rng(1).integers(0, 2, (200, 64), dtype=np.uint8))  # fmt: skip
    for row in rows_of(random, [200, 2000], trials=1).values():
        assert row["top1"] < 0.05
        assert row["named"] == row["wrongly_named"] == row["named_though_absent"] == 0


def test_win_probability_is_exact_for_few_keys() -> None:
    """Against summing over all outcomes of one and of two other keys."""
    distribution = queries.from_bits(0).distribution
    for distance in (0, 20, 32, 63, 64):
        less = match_tail(64 - distance + 1, 64) if distance else 0.0
        same = match_tail(64 - distance, 64) - less
        more = 1 - less - same
        assert win_probability(distribution, distance, 2) == pytest.approx(more + same / 2)
        assert win_probability(distribution, distance, 3) == pytest.approx(
            more**2 + more * same + same**2 / 3
        )
        assert win_probability(distribution, distance, 1) == pytest.approx(1)


def test_the_design_figures_of_the_analytic_curve() -> None:
    """Top-1 at 6.2% errors and 1e8 keys is 99.5% hard; at 25% it is hopeless."""
    assert iid_top1(0.062, 10**8) == pytest.approx(0.995, abs=0.003)
    assert iid_top1(0.25, 10**8) < 0.1


def test_several_images_of_one_secret_are_summed() -> None:
    decoded = simulate(0.25, 100, seed=6, each=4)
    one, four = (rows_of(experiment.together(decoded, n), [10_000], trials=1)[10_000, "soft"] for n in (1, 4))
    assert one["images"] == four["images"] == 100
    assert four["top1"] > 0.99 > one["top1"]
    with pytest.raises(ValueError, match="no secret has 5 images"):
        experiment.together(decoded, 5)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 64, 2)))
    with pytest.raises(ValueError, match="needs arrays logits and secrets, found logits"):
        experiment.read(tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"got \(2, 48, 2\) and \(2, 48\)"):
        Decoded("x", np.zeros((2, 48, 2), np.float32), np.zeros((2, 48), np.uint8))


def test_the_command_runs_on_any_methods_logits(tmp_path: Path) -> None:
    decoded = simulate(0.1, 30, seed=5)
    np.savez(tmp_path / "method-a.npz", logits=decoded.logits, secrets=decoded.secrets)
    out = tmp_path / "out.json"
    arguments = [
        "registry",
        "experiment",
        str(tmp_path / "method-a.npz"),
        "--simulate",
        "0.2",
        "--images",
        "20",
    ]
    result = CliRunner().invoke(app, [*arguments, "--largest", "100", "--trials", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    assert {row["source"] for row in document["rows"]} == {"method-a", "iid 0.2"}
    assert {row["keys"] for row in document["rows"]} == {10, 100}
    assert document["config"]["seed"] == 0
    assert out.with_suffix(".png").stat().st_size > 10_000
    result = CliRunner().invoke(app, [*arguments, "--largest", "10", "--trials", "1"])
    assert "expected_top1" in result.output
    assert isinstance(CliRunner().invoke(app, ["registry", "experiment"]).exception, ValueError)


def test_the_benchmark_measures_every_path() -> None:
    keys = np.random.default_rng(1).integers(0, 2**64, 20_000, dtype=np.uint64)
    rows = list(bench.bench(keys, repeats=1))
    names = {row["what"] for row in rows}
    assert {
        "read all keys (the limit)",
        "scan, hard",
        "scan, soft",
        "index, every key within 11 errors",
    } <= names
    assert all(row["ms"] >= 0 for row in rows)
    result = CliRunner().invoke(app, ["registry", "bench", "--keys", "1e4", "--no-index"])
    assert "times the limit" in result.output
