"""The codecs that ship for real latent spaces: what a user gets who has no diffusion model at hand."""

from __future__ import annotations

import json
import sys

import diffusers
import numpy as np
import pytest
import torch
from conftest import _build
from PIL import Image

import diffmark
from diffmark import cli
from diffmark.codec_files import bundled_codecs, find_codec
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.injection import Injection
from diffmark.provenance import weights_digest
from diffmark.secret import to_hex
from diffmark.vae import FAMILIES, FamilyError, encode
from diffmark.vista.paint import paint
from diffmark.vista.scenes import random_scene

SHIPPED = [name for name in bundled_codecs() if name in FAMILIES and name != "vista"]
IMG2IMG = {
    "sd": "StableDiffusionImg2ImgPipeline",
    "sdxl": "StableDiffusionXLImg2ImgPipeline",
    "sd3": "StableDiffusion3Img2ImgPipeline",
    "flux": "FluxImg2ImgPipeline",
}
WITH_OWN = [name for name in SHIPPED if (find_codec(name) / "vae").is_dir()]


@pytest.fixture(scope="module")
def picture():
    return Image.fromarray(paint(random_scene(7), 512))


@pytest.fixture(scope="module")
def secret():
    return np.random.default_rng(0).integers(2, size=64, dtype=np.uint8)


def test_every_family_ships_with_an_autoencoder_of_ours():
    assert set(WITH_OWN) == {"sd", "sdxl", "sd3", "flux"}


def test_an_autoencoder_of_ours_serves_its_own_family_only():
    """All have scaling factor 1, and two of them each number of channels."""
    for name, other in (("sd", "sdxl"), ("sdxl", "sd"), ("sd3", "flux"), ("vista", "sd")):
        with pytest.raises(FamilyError, match=f"family '{name}', the vae is of '{other}'"):
            Detector.from_pretrained(name, find_codec(other) / "vae")


@pytest.mark.parametrize("name", WITH_OWN)
def test_the_calibration_is_of_the_autoencoder_that_ships(name, picture):
    detector = Detector.from_pretrained(name)
    assert detector.codec.calibration.vaes == (weights_digest(detector.vae, half=True),)
    assert detector.detect(picture).test == "blind"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_card_states_what_was_measured(name):
    folder = find_codec(name)
    config = json.loads((folder / "config.json").read_text())["config"]
    card = (folder / "README.md").read_text()
    assert config["family"] == name
    assert config["injection"]["mode"] == "final"
    assert "distilled" in card
    assert f"results/family_{name}.json" in card


@pytest.mark.parametrize("name", WITH_OWN)
def test_a_picture_is_marked_and_read_without_any_model(name, picture, secret):
    detector = Detector.from_pretrained(name)
    marked = embed(picture, detector.codec, detector.vae, secret)
    assert psnr(marked, picture) > 36
    found = detector.detect(marked, secret)
    assert found.verdict == "marked"
    assert found.matches >= 56
    assert detector.detect(picture, secret).verdict == "not marked"


def test_another_size_and_aspect(picture, secret):
    detector = Detector.from_pretrained("sd")
    wide = picture.resize((700, 400), Image.Resampling.LANCZOS)
    marked = embed(wide, detector.codec, detector.vae, secret)
    assert marked.size == (700, 400)
    assert detector.detect(marked, secret).verdict == "marked"


def test_the_commands_need_no_autoencoder(picture, secret, tmp_path, monkeypatch, capsys):
    picture.save(tmp_path / "in.png")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr().out

    hexed = to_hex(secret)
    code, _ = run(
        "embed", tmp_path / "in.png", "--codec", "sd", "--secret", hexed, "--out", tmp_path / "out.jpg"
    )
    assert code == 0
    code, out = run(
        "detect", tmp_path / "out.jpg", "--codec", "sd", "--secret", hexed, "--json", "--device", "cpu"
    )
    assert code == 0
    assert json.loads(out)["verdict"] == "marked"


@pytest.mark.parametrize("family", WITH_OWN)
def test_a_pipeline_of_the_family_generates_marked_images(family, picture, secret):
    """The family's own pipeline class with random denoiser weights: a few steps at the end of the trajectory."""
    rig, detector = _build(family), Detector.from_pretrained(family)
    pipe = getattr(diffusers, IMG2IMG[family]).from_pipe(rig.pipe, vae=detector.vae)
    pipe.set_progress_bar_config(disable=True)
    arguments = {**rig.arguments, "image": picture, "strength": 0.08, "num_inference_steps": 50}
    if "height" in arguments:
        arguments |= {"height": 512, "width": 512}

    def generate():
        return pipe(**arguments, generator=torch.Generator().manual_seed(0)).images[0]

    assert detector.detect(generate(), secret).verdict == "not marked"
    for mode in ("final", "late"):
        with diffmark.watermark(pipe, detector.codec, secret, injection=Injection(mode)):
            found = detector.detect(generate(), secret)
        assert found.verdict == "marked", mode


def test_our_latents_are_in_the_familys_scale(picture):
    detector = Detector.from_pretrained("sd")
    pixels = torch.from_numpy(np.asarray(picture, np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        assert 0.5 < float(encode(detector.vae, pixels).std()) < 1.5
