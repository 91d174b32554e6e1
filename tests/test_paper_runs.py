"""The run files for Stable Diffusion on tiny real pipelines: pretrain, dual, measure, publish, mark, detect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_train_command import call

from diffmark import Codec, Detector, random_secrets, watermark
from diffmark.mark.loading import load_pipeline
from diffmark.training.loop import LoopConfig
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.training.lcm import LCMConfig, train_lcm
from diffmark.vista.training.unet import UNetConfig, build_pipeline, save_pipeline

CONFIGS = Path(__file__).parents[1] / "configs"
LOOP = LoopConfig(steps=1, batch=2, learning_rate=1e-3, warmup=1, decay=1, log_every=1, save_every=1)

# What a run file for a real model is given for a tiny one: its folders, its sizes, fewer steps.
RUN_FILE = """
base = "{base}"
[codec]
height = 32
width = 32
family = "vista"
[model]
pipeline = "{folder}/model"
lcm = "{folder}/lcm/model"
[data]
prompts = "{folder}/prompts.txt"
pictures = "vista"
count = 4
[pretraining]
steps = 2
batch = 4
[optimiser]
steps = 2
batch = 2
warmup = 1
precision = "fp32"
[paths]
steps = 2
ddim_steps = 2
[gates]
imperceptibility = 0
[delta]
horizon = 1
[log]
log_every = 1
save_every = 1
measure_every = 1
measure_images = 2
sample_every = 0
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with an untrained pipeline, an LCM of it, and prompts."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    vae = PatchAutoencoder(block_out_channels=(4, 4, 8, 16), layers_per_block=1).eval()
    pipe = build_pipeline(vae, UNetConfig(LOOP, 4, block_out_channels=(16, 16, 16), text_width=32), folder)
    save_pipeline(pipe, folder / "model")
    train_lcm(LCMConfig(LOOP, scenes=4, guidance_width=8), folder / "lcm", pipe)
    (folder / "prompts.txt").write_text("green hills at noon\na lake at night\n")
    return folder


@pytest.mark.parametrize("name", ["sd15_paper", "sd15_persistent"])
def test_a_run_file_for_a_real_model_on_a_tiny_one(models, tmp_path, name):
    config, cache = tmp_path / "run.toml", models / "cache"
    config.write_text(RUN_FILE.format(base=CONFIGS / f"{name}.toml", folder=models))
    call("pretrain", "--config", config, "--out", tmp_path / "pre", "--cache", cache, "--cpu")
    start = tmp_path / "pre" / "codec"
    call("dual", "--config", config, "--codec", start, "--out", tmp_path / "run", "--cache", cache, "--cpu")
    line = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[-1])
    ours = {"loss_regen_diff", "loss_percep"}
    theirs = {
        f"loss_{n}" for n in ("lcm", "ddim", "mag", "kl", "orth", "prvl", "lafid", "freq", "neg", "regen")
    }
    assert (theirs if name == "sd15_paper" else ours) <= line.keys()

    published = tmp_path / "codec"
    call("measure", tmp_path / "run/best", "--config", config, "--out", tmp_path / "result.json", "--marked", 2,
         "--negatives", 20, "--publish", published, "--cache", cache)  # fmt: skip
    found = json.loads((tmp_path / "result.json").read_text())["results"]
    assert found["marked"] == 2
    assert found["injection"]["mode"] == ("paper" if name == "sd15_paper" else "persistent")

    codec, pipe = Codec.from_pretrained(published), load_pipeline(str(models / "model"))
    pipe.set_progress_bar_config(disable=True)
    secret = random_secrets()
    with watermark(pipe, codec, secret, verify=None):  # two steps of training teach nothing
        image = pipe("a lake", num_inference_steps=2, generator=torch.Generator().manual_seed(0)).images[0]
    detection = Detector(codec, pipe.vae).detect(image, secret)
    assert detection.test == "secret"
    assert len(detection.bits) == 64
