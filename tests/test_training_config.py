from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diffmark.latent.injection import Injection
from diffmark.training.config import TrainingConfig, read_config
from diffmark.training.inversion import InversionConfig
from diffmark.training.run_file import read_run_file

FOLDER = Path(__file__).parents[1] / "configs"
CONFIGS = [
    *FOLDER.glob("ablations/*.toml"),
    *(path for path in FOLDER.glob("*.toml") if "[codec]" in path.read_text()),
]


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_tables_become_dataclasses(tmp_path):
    config = read_config(
        write(
            tmp_path,
            """
            seed = 7
            [codec]
            length = 48
            [dosing]
            injection = { mode = "final", dose = 1 }
            [optimiser]
            encoder_rate = 1
            [robustness]
            attacks = { jpeg = 1.0, rotation = 0.2 }
            [gates]
            robustness = 900
            """,
        )
    )
    assert (config.seed, config.codec.length, config.dosing.injection.mode) == (7, 48, "final")
    assert config.robustness.attacks == {"jpeg": 1.0, "rotation": 0.2}
    assert isinstance(config.optimiser.encoder_rate, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 1", "unknown key 'sed'; there are codec"),
        ("[weights]\nlmc = 1.0", "weights: unknown key 'lmc'"),
        ("optimiser = 3", "optimiser is a table, got 3"),
        ("[optimiser]\nsteps = 'many'", "optimiser: steps is a int, got 'many'"),
        ("[optimiser]\nprecision = 'fp8'", "precision is one of fp32, bf16, fp16"),
        ("[optimiser]\nbatch = 10\naccumulation = 4", "as many in each accumulated part"),
        ("[gates]\nreconstruction = 10\nimperceptibility = 5", "opens at step 5, before"),
        ("[gates]\nrobustness = 600", "gates.robustness and robustness.attacks go together"),
        ("[gates]\nrobustness = 600\n[robustness]\nattacks = {jpg = 1.0}", "unknown attack 'jpg'"),
        ("[gates]\nrobustness = 600\n[robustness]\nattacks = {jpeg = 2.0}", "strength of jpeg lies in"),
        (
            "[gates]\nimperceptibility = -1\nrobustness = 0\n[robustness]\nattacks = {jpeg = 1.0}",
            "opens within imperceptibility",
        ),
        ("[paths]\nddim_steps = 0", "without a DDIM path"),
        ("[paths]\nrefresh_every = 4", "needs a replay buffer"),
        ("[paths]\nregen_on = 'z0'", "regen_on is ddim or bridge"),
        (
            "[dosing]\ninjection = {mode = 'paper'}\n[paths]\nddim_injection = {mode = 'late'}",
            "must start at the same place, got pictures noised to 0.2, pure noise",
        ),
        ("[paths]\ndecoded = 0.0", "decoded is a share of the batch"),
        ("[regeneration]\ntimes = []", "there must be a timestep above 0"),
        ("[paths]\nddim_injection = 3", "ddim_injection is a table, got 3"),
        ("[log]\nsave_every = 30\nlog_every = 20", "must be a multiple of log_every"),
        ("[codec]\nheight = 33", "cannot be halved"),
        ("seed = = 1", "is not TOML"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_committed_run_file_is_read(path):
    read_run_file(path, InversionConfig if "[pairs]" in path.read_text() else TrainingConfig)


def test_a_run_file_overrides_its_base(tmp_path):
    (tmp_path / "base.toml").write_text(
        "seed = 3\n[codec]\nlength = 48\n[dosing]\ninjection = {mode = 'late', start = 0.3}\n[optimiser]\nsteps = 9"
    )
    text = "base = 'base.toml'\n[dosing]\ninjection = {mode = 'final'}\n[optimiser]\nbatch = 4"
    config = read_config(write(tmp_path, text))
    assert (config.seed, config.codec.length, config.optimiser.steps, config.optimiser.batch) == (3, 48, 9, 4)
    assert (config.dosing.injection.mode, config.dosing.injection.start) == ("final", 0.2)


def test_the_papers_tables_are_the_defaults_and_in_its_run_file():
    """Training hyperparameters and loss weights, copied by hand from the paper's two tables."""
    config = read_config(Path(__file__).parents[1] / "configs" / "sd15_paper.toml")
    optimiser, paths, delta, gates, weights = (
        config.optimiser,
        config.paths,
        config.delta,
        config.gates,
        config.weights,
    )
    assert (optimiser.steps, optimiser.batch, optimiser.precision) == (10_000, 16, "bf16")
    assert (optimiser.encoder_rate, optimiser.decoder_rate) == (5e-5, 3e-4)
    assert (optimiser.warmup, optimiser.final_rate) == (500, 1e-6)
    assert (optimiser.clip_encoder, optimiser.clip_decoder) == (5.0, 1.0)
    assert (paths.steps, paths.ddim_steps, paths.guidance - 1) == (4, 50, 7.5)  # K, N, w
    assert (gates.reconstruction, gates.imperceptibility, gates.robustness) == (0, 500, -1)
    assert (delta.sigma_start, delta.sigma_end, delta.horizon) == (0.10, 0.05, 5000)
    assert (weights.lcm, weights.ddim, weights.mag) == (1.0, 1.0, 5.0)
    assert (weights.kl_start, weights.kl_end, weights.kl_warmup) == (0.001, 0.05, 1000)
    assert (weights.orth, weights.prvl, weights.lafid, weights.freq) == (0.1, 1.5, 0.1, 0.5)
    assert (weights.neg, weights.regen) == (0.01, 1.0)
    assert (config.codec.length, config.dosing.injection.mode) == (64, "paper")
    # Algorithm 3, and the two paths of Algorithm 2: delta, delta, delta / N.
    assert config.injections == (Injection("paper"), Injection("paper"), Injection("mean"))
    pretraining = config.pretraining
    assert (pretraining.steps, pretraining.batch) == (50_000, 64)
    assert (pretraining.encoder_rate, pretraining.decoder_rate) == (3e-4, 1e-4)
    assert (pretraining.stop_accuracy, pretraining.stop_after) == (0.99, 10)
    default = TrainingConfig()
    assert (weights, delta, gates, config.guard) == (
        default.weights,
        default.delta,
        default.gates,
        default.guard,
    )


def test_the_papers_run_on_the_embedded_family_changes_sizes_alone():
    theirs, ours = (read_config(FOLDER / f"{name}_paper.toml") for name in ("sd15", "vista"))
    for part in ("delta", "gates", "weights", "pretraining", "guard", "robustness", "injections", "seed"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert replace(ours.codec, height=64, width=64, family="sd") == theirs.codec
    assert replace(ours.optimiser, precision="bf16") == theirs.optimiser
    same = {"guidance": 8.5, "checkpointing": True, "region": 32, "radius": 10.0}
    assert replace(ours.paths, **same) == theirs.paths
