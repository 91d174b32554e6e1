"""`diffmark train`, from a run file to a measured codec, with a tiny autoencoder and a folder of pictures."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import _embeds
from PIL import Image
from test_training import tiny_config
from typer.testing import CliRunner

from diffmark.cli import app
from diffmark.latent.codec import Codec
from diffmark.latent.vae import load_vae
from diffmark.provenance import weights_digest
from diffmark.training import paths
from diffmark.training.config import (
    DataConfig,
    LogConfig,
    ModelConfig,
    PathConfig,
    TrainingConfig,
    read_config,
)
from diffmark.training.draws import Draws
from diffmark.training.measurement import measure_codec
from diffmark.training.plotting import plot_run
from diffmark.training.preparation import prepare
from diffmark.training.sources import open_pictures

RUN_FILE = """
[codec]
length = 16
height = 8
width = 8
embed_dim = 8
encoder_widths = [8, 8]
decoder_widths = [8, 16]
decoder_hidden = [32]
[dosing]
injection = {{ mode = "final" }}
[model]
vae = "{folder}/vae"
[data]
pictures = "{folder}/pictures"
count = 12
[delta]
normalise = true
horizon = 2
[pretraining]
steps = 4
batch = 4
host = true
[optimiser]
steps = 4
batch = 4
[paths]
ddim_steps = 0
regen_on = "bridge"
[weights]
ddim = 0.0
[log]
log_every = 2
save_every = 2
measure_every = 2
measure_images = 4
sample_every = 4
"""


@pytest.fixture
def workshop(tmp_path, rig):
    """A folder with an autoencoder, forty pictures and a run file."""
    rng = np.random.default_rng(0)
    (tmp_path / "pictures").mkdir()
    for index in range(40):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(
            tmp_path / f"pictures/{index:02}.png"
        )
    rig("sd").pipe.vae.save_pretrained(tmp_path / "vae")
    (tmp_path / "run.toml").write_text(RUN_FILE.format(folder=tmp_path))
    return tmp_path


def call(*arguments):
    result = CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_a_run_file_to_a_calibrated_codec(workshop):
    config, cache = workshop / "run.toml", workshop / "cache"
    call("pretrain", "--config", config, "--out", workshop / "pre", "--cache", cache, "--cpu")
    start = workshop / "pre" / "codec"
    call("dual", "--config", config, "--codec", start, "--out", workshop / "run", "--cache", cache, "--cpu")
    assert (workshop / "run/samples/00000004.png").is_file()
    call("plot", workshop / "run")
    with Image.open(workshop / "run/curves.png") as curves:
        assert curves.width > 500

    best, result, published = workshop / "run/best", workshop / "results/tiny.json", workshop / "codecs/tiny"
    call("measure", best, "--config", config, "--out", result, "--marked", 4, "--negatives", 20,
         "--publish", published, "--cache", cache)  # fmt: skip
    document = json.loads(result.read_text())
    assert {"command", "config", "versions", "revision", "seed"} <= document.keys()
    found = document["results"]
    assert found["marked"] == 4
    assert 0 <= found["attacks"]["jpeg_50"]["bit_accuracy"] <= 1
    assert found["negatives"]["images"] == 20
    codec = Codec.from_pretrained(published)
    assert codec.calibration.negatives == 20
    assert codec.calibration.vaes == (weights_digest(load_vae(workshop / "vae"), half=True),)
    assert codec.dosing.deviation == pytest.approx(0.05)
    assert codec.provenance["measured"]["psnr"]["mean"] > 10


def test_what_cannot_be_measured_or_prepared_is_named(workshop, tmp_path):
    config = read_config(workshop / "run.toml")
    Codec(config.codec, config.dosing).save_pretrained(tmp_path / "final")
    with pytest.raises(
        ValueError, match="has 40 pictures; 12 are trained on .* and 34 unseen ones are asked"
    ):
        measure_codec(tmp_path / "final", config, 10, 20)
    late = tiny_config("late")
    Codec(late.codec, late.dosing).save_pretrained(tmp_path / "late")
    with pytest.raises(ValueError, match="'late', which goes through a denoiser"):
        measure_codec(tmp_path / "late", config, 4, 20)
    with pytest.raises(ValueError, match="'late' goes through a denoiser: give model.pipeline"):
        prepare(late)
    with pytest.raises(ValueError, match="names no autoencoder"):
        prepare(tiny_config())
    with pytest.raises(ValueError, match="'final' trains on pictures"):
        prepare(tiny_config(model=ModelConfig(vae=str(workshop / "vae"))))


def test_curves_need_a_log(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not the folder of a training run"):
        plot_run(tmp_path)
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(ValueError, match="has not logged anything yet"):
        plot_run(tmp_path)


@pytest.mark.parametrize("mode", ["persistent", "late"])
def test_a_pipeline_and_its_lcm_are_frozen_and_its_prompts_embedded_once(
    rig, monkeypatch, workshop, tmp_path, mode
):
    calls = []

    def encode_prompt(prompts, device, images, guidance):
        calls.append(len(prompts))
        return _embeds(len(prompts), len(prompts), 7, 32), None

    def load(name, device):
        pipe = copy.deepcopy(rig(name).pipe)
        pipe.encode_prompt = encode_prompt
        return pipe

    monkeypatch.setattr("diffmark.mark.loading.load_pipeline", load)
    (tmp_path / "prompts.txt").write_text("a lake\n\na forest\na hill\n")
    config = tiny_config(mode, model=ModelConfig(pipeline="sd", lcm="lcm" if mode == "persistent" else ""))
    sources = {"prompts": str(tmp_path / "prompts.txt")}, {"pictures": str(workshop / "pictures")}
    data = dict(zip(("persistent", "late"), sources, strict=True))
    config = replace(config, data=DataConfig(**data[mode]))
    material = prepare(config)
    models = material.paths.denoisers
    assert calls == (
        [3, 1, 1] if mode == "persistent" else [1, 1]
    )  # the LCM is asked whether its words differ
    assert material.paths.uses_lcm == (mode == "persistent")
    frozen = [*models.unet.parameters(), *material.autoencoder.parameters()]
    assert not any(parameter.requires_grad for parameter in frozen)


def test_models_that_cannot_be_trained_through_are_refused(rig, monkeypatch):
    monkeypatch.setattr("diffmark.mark.loading.load_pipeline", lambda name, device: rig(name).pipe)
    for name in ("sdxl", "flux"):
        with pytest.raises(ValueError, match="cannot be trained through.*injection mode 'final'"):
            paths.load_denoisers(tiny_config("persistent", model=ModelConfig(pipeline=name)), ["a hill"])


def test_prompts_come_from_a_file_else_from_captions(tmp_path):
    captioned = SimpleNamespace(caption=lambda i: f"picture {i}", count=2)
    assert paths.read_prompts("", captioned) == ["picture 0", "picture 1"]
    assert paths.read_prompts("", None) == [""]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="has no prompt in it"):
        paths.read_prompts(str(tmp_path / "empty.txt"), None)


def test_whoever_holds_out_more_holds_out_the_same_ones_first(workshop):
    """So pictures that chose the best codec are not among those that it is measured on."""
    few, many = (open_pictures(str(workshop / "pictures"), (64, 64), 100, held_out) for held_out in (4, 10))
    for i in range(4):
        assert np.array_equal(few.held_out.pixels(i), many.held_out.pixels(i))
    assert many.train.count == few.train.count - 6


def test_late_paths_take_only_the_last_of_the_ddim_steps(rig):
    pipe = rig("sd").pipe
    models = paths.Denoisers(pipe.unet, pipe.scheduler, _embeds(1, 2, 7, 32), _embeds(2, 1, 7, 32))
    config = tiny_config("late")
    late = paths.Paths(config, torch.zeros(4, 4, 8, 8), None, models)
    assert late.ddim_trajectory.timesteps == (251, 1)  # of 751, 501, 251, 1 below 0.4 of 1000
    assert late.ddim_weights.sum() == pytest.approx(1)
    assert late.bridge_weights.sum() == pytest.approx(1)
    # Each path begins with the noise that its first step is told of.
    start = late.draw(Draws(0, 0), 400)
    for trajectory in (late.ddim_trajectory, late.bridge_trajectory):
        noise = (1 - float(trajectory.abar[0])) ** 0.5
        assert late.entered(start, trajectory).std() == pytest.approx(noise, rel=0.02)
    assert late.ddim_trajectory.abar[0] != late.bridge_trajectory.abar[0]


def test_an_lcm_with_words_of_its_own_hears_them(rig):
    pipe = rig("sd").pipe
    theirs = _embeds(3, 2, 7, 32)
    models = paths.Denoisers(
        pipe.unet, pipe.scheduler, _embeds(1, 2, 7, 32), _embeds(2, 1, 7, 32), pipe, theirs
    )
    start = paths.Paths(tiny_config("persistent"), None, None, models).draw(Draws(0, 0), 3)
    assert start.lcm_embeddings is not None
    assert all(any(torch.equal(row, one) for one in theirs) for row in start.lcm_embeddings)


def test_persistent_paths_start_at_noise_even_where_pictures_are_given(rig):
    pipe = rig("sd").pipe
    models = paths.Denoisers(pipe.unet, pipe.scheduler, _embeds(1, 2, 7, 32), _embeds(2, 1, 7, 32))
    made = paths.Paths(tiny_config("persistent"), torch.zeros(4, 4, 8, 8), torch.zeros(4, 4, 8, 8), models)
    assert made.draw(Draws(0, 0), 3).z.std() > 0.5
    assert made.held_out is None


def test_a_late_codec_is_measured_through_the_pipeline(tmp_path):
    """The shipped codec, put to late injection: the mark goes through the denoiser and is read from the images."""
    codec = Codec.from_pretrained("vista-final")
    config = TrainingConfig(
        codec=codec.config,
        model=ModelConfig(pipeline="vista"),
        data=DataConfig(pictures="vista", count=2),
        paths=PathConfig(ddim_steps=6, guidance=3.0),
        log=LogConfig(measure_images=0),
    )
    found, measured = measure_codec("vista-final", config, 2, 20, cache=tmp_path, injection="late")
    assert found["injection"] == {
        "mode": "late",
        "dose": codec.dosing.doses["late"],
        "start": 0.2,
        "end": 0.0,
    }
    assert measured.injection.mode == "late"
    assert found["attacks"]["none"]["bit_accuracy"] > 0.85
    assert 15 < found["psnr"]["mean"] < 50
    assert found["negatives"]["bit_accuracy"] < 0.65
    assert measured.calibration is not None
    assert found["blind_tpr_at_1e-3"] is None  # twenty unmarked images cannot tell one in a thousand
    with pytest.raises(ValueError, match="need as many prompts that were not trained on, got 1"):
        measure_codec("vista-final", config, 2, 20, cache=tmp_path, prompts=["a lake"], injection="late")
