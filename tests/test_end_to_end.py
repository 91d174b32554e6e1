"""The shipped model and codec together: what README, demo and a user's first hour rest on."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diffmark
from diffmark import cli, demo
from diffmark.attacks import attack
from diffmark.evaluation.image_model import unseen_specs
from diffmark.mark.generation import ImageSpec, Sampling, generate
from diffmark.mark.image import embed
from diffmark.metrics import psnr
from diffmark.registry import Registry
from diffmark.secret import random_secrets
from diffmark.vista import load_autoencoder, load_pipeline
from diffmark.vista.paint import painted_scenes

ROOT = Path(__file__).parents[1]
SAMPLING = Sampling(steps=10, guidance=4.0)


@pytest.fixture(scope="module")
def pipe():
    pipe = load_pipeline("vista")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def codec():
    return diffmark.Codec.from_pretrained("vista-final")


@pytest.fixture(scope="module")
def detector():
    return diffmark.Detector.from_pretrained("vista-final", fpr=1e-6)


@pytest.fixture(scope="module")
def marked(pipe, codec):
    """Four specs with their plain and marked pictures."""
    specs = [ImageSpec(o.prompt, o.secret[:64], o.seed) for o in unseen_specs(4)]
    plain = [generate(pipe, codec, spec, Sampling(steps=10, guidance=4.0, strength=0.0)) for spec in specs]
    return specs, plain, [generate(pipe, codec, spec, SAMPLING) for spec in specs]


def test_a_marked_picture_is_read_through_a_file_and_looks_the_same(marked, detector, tmp_path):
    specs, plain, images = marked
    for spec, clean, image in zip(specs, plain, images, strict=True):
        image.save(tmp_path / "picture.png")
        assert detector.detect(tmp_path / "picture.png", spec.secret).marked
        assert not detector.detect(clean, spec.secret).marked
        assert psnr(clean, image) > 28


def test_jpeg_and_resizing_leave_the_mark(marked, detector):
    specs, _, images = marked
    for spec, image in zip(specs, images, strict=True):
        assert detector.detect(attack("jpeg", image, 0.5), spec.secret).marked
        assert detector.detect(attack("resize", image, 0.6), spec.secret).marked


def test_the_registry_names_the_account(marked, detector):
    specs, plain, images = marked
    with Registry.open("sqlite://", actor="test") as registry:
        registry.import_keys(np.random.default_rng(0).integers(0, 2**64, 100_000, np.uint64))
        keys = np.array(
            [int.from_bytes(np.packbits(spec.secret).tobytes(), "big") for spec in specs], np.uint64
        )
        registry.import_keys(keys, [f"account-{i}" for i in range(len(specs))])
        for index, (clean, image) in enumerate(zip(plain, images, strict=True)):
            assert registry.identify(detector.detect(image)).verdict.principal == f"account-{index}"
            assert registry.identify(detector.detect(clean)).verdict.principal is None


def test_blind_verdicts(marked, codec):
    blind = diffmark.Detector.from_pretrained("vista-final", fpr=1e-3)
    _, plain, images = marked
    assert codec.calibration is not None
    assert all(blind.detect(image).verdict == "marked" for image in images)
    assert all(blind.detect(image).verdict == "not marked" for image in plain)


def test_an_existing_picture_can_be_marked(codec, detector):
    (scene,) = painted_scenes(1, first=900)
    secret = random_secrets(1)[0]
    image = embed(scene.resize((400, 300)), codec, load_autoencoder(), secret)
    assert image.size == (400, 300)
    assert detector.detect(image, secret).marked


def test_other_shapes_of_the_picture(pipe, codec, detector):
    secret = random_secrets(1)[0]
    with diffmark.watermark(pipe, codec, secret):
        image = pipe("green hills at noon above a lake", height=256, width=384, num_inference_steps=8).images[
            0
        ]
    assert image.size == (384, 256)
    assert detector.detect(image, secret).matches >= 51


def test_the_script_in_the_readme_runs(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text()
    first, second, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(first.strip().splitlines()) <= 12
    monkeypatch.chdir(tmp_path)
    next(painted_scenes(1)).save("photo.jpg", quality=95)
    said, names = io.StringIO(), {}
    with contextlib.redirect_stdout(said):
        exec(compile(first, "README.md", "exec"), names)
        exec(compile(second, "README.md", "exec"), names)
    verdict, p_value, again = said.getvalue().split()
    assert (verdict, again) == ("marked", "marked")
    assert float(p_value) < 1e-6


def test_generate_and_detect_need_no_argument(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr().out

    prompt = "snowy mountains at dawn above a lake"
    code, text = run("generate", prompt, "--secret", "random", "--steps", 8, "--out", tmp_path, "--json")
    record = json.loads(text)
    assert code == 0
    code, text = run("detect", tmp_path / record["file"], "--secret", record["secret"], "--fpr", 1e-6)
    assert (code, "marked" in text) == (0, True)


def test_the_demo_names_all_four(tmp_path):
    demo.main(tmp_path / "demo", steps=8, others=2000)
    page = (tmp_path / "demo" / "index.html").read_text()
    for account in demo.CUSTOMERS:
        assert f"<b class=yes>{account}</b>" in page
    with Image.open(tmp_path / "demo" / "ada-marked.png") as image:
        assert image.size == (256, 256)
    stranger = tmp_path / "mine"
    stranger.mkdir()
    (stranger / "photo.png").write_bytes(b"precious")
    (stranger / "registry.db").write_bytes(b"a registry in use")
    with pytest.raises(Exception, match="holds something else"):
        demo.main(stranger)
    assert (stranger / "photo.png").exists()
