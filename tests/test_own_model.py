from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from conftest import _build, _vae, tiny_codec
from PIL import Image

from diffmark import cli
from diffmark.detection.latent import Detector
from diffmark.evaluation.own_model import calibrate
from diffmark.latent.calibration import Calibration
from diffmark.latent.codec import Codec
from diffmark.latent.injection import Injection
from diffmark.latent.vae import load_vae


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (80, 64, 3), dtype=np.uint8)) for _ in range(4)]


def _codec() -> Codec:
    codec = tiny_codec(injection=Injection("final"))
    return codec


def test_it_counts_what_was_measured(pictures):
    vae = _build("sd").pipe.vae
    found = calibrate(_codec(), vae, pictures, crops=4)
    assert found.negatives == found.measured["unmarked"] == 4 * (1 + 4 + 1)  # itself, crops, round trip
    assert found.measured["marked"] == 4
    assert 0.3 < found.measured["bit_accuracy"] < 0.7  # an untrained decoder reads by chance
    again = calibrate(_codec(), vae, pictures, crops=4)
    assert again == found


def test_psnr_is_that_of_the_pixels(pictures):
    from diffmark.latent.vae import decode, encode

    vae, codec = _build("sd").pipe.vae, _codec()
    found = calibrate(codec, vae, pictures[:1], crops=19)
    secret = np.random.default_rng([0, 0]).integers(2, size=(1, codec.config.length), dtype=np.uint8)
    size = (codec.config.image_size[1], codec.config.image_size[0])
    small = np.asarray(pictures[0].resize(size, Image.Resampling.LANCZOS), np.float32)
    with torch.no_grad():
        z = encode(vae, torch.from_numpy(small.transpose(2, 0, 1) / 127.5 - 1)[None])
        images = [decode(vae, w).clamp(-1, 1) for w in (z, z + codec.delta(secret))]
    a, b = (((image + 1) * 127.5).round() for image in images)
    error = float((a - b).square().mean())
    assert found.measured["psnr"] == pytest.approx(10 * np.log10(255**2 / error), abs=0.02)


def test_only_final_injection(pictures):
    with pytest.raises(ValueError, match="only mode 'final'"):
        calibrate(tiny_codec(injection=Injection("late")), _build("sd").pipe.vae, pictures)
    with pytest.raises(ValueError, match="no images"):
        calibrate(_codec(), _build("sd").pipe.vae, [])


@pytest.mark.parametrize("size", [(64, 64), (96, 80), (48, 64)])
def test_pictures_are_marked_at_the_size_that_is_generated(pictures, size, monkeypatch):
    codec, seen = _codec(), []
    delta = codec.delta

    def spy(secrets, size):
        seen.append((8 * size[0], 8 * size[1]))
        return delta(secrets, size)

    monkeypatch.setattr(codec, "delta", spy)
    found = calibrate(codec, _build("sd").pipe.vae, pictures, size=size)
    assert seen == 4 * [size]
    assert found.measured["size"] == list(size)
    assert found.measured["psnr"] > 10


def test_an_autoencoder_that_gives_no_pictures_is_told(pictures, monkeypatch):
    monkeypatch.setattr(
        "diffmark.evaluation.own_model.decode", lambda vae, z: torch.full((1, 3, 64, 64), torch.nan)
    )
    with pytest.raises(ValueError, match="not finite"):
        calibrate(_codec(), _build("sd").pipe.vae, pictures)


def test_sizes_that_no_pipeline_makes_are_refused(pictures):
    with pytest.raises(ValueError, match="multiples of 8, got 60x64"):
        calibrate(_codec(), _build("sd").pipe.vae, pictures, size=(60, 64))


@pytest.fixture
def run(pictures, tmp_path, monkeypatch, capsys):
    """Run `diffmark calibrate`: the codec that it wrote, what it printed, its warnings."""
    (tmp_path / "pictures").mkdir()
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "pictures" / f"{number}.png")
    torch.manual_seed(0)
    _vae(scaling_factor=0.18215).save_pretrained(tmp_path / "vae")

    def call(codec, *more):
        arguments = ["--model", tmp_path / "vae", "--images", tmp_path / "pictures", "--codec", codec, *more]
        arguments += ["--out", tmp_path / "mine", "--device", "cpu"]
        monkeypatch.setattr(sys, "argv", ["diffmark", "calibrate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None)
        out, err = capsys.readouterr()
        return Codec.from_pretrained(tmp_path / "mine"), json.loads(out), err

    return call


def test_the_command_writes_a_calibrated_codec(run, tmp_path):
    codec, printed, warned = run(_codec().save_pretrained(tmp_path / "codec"))
    assert codec.calibration is not None
    assert codec.calibration.measured == printed
    assert printed["marked"] == 4
    assert "24 unmarked images are too few for blind verdicts" in warned
    assert printed["size"] == [64, 64]
    assert run(tmp_path / "codec", "--height", 96)[1]["size"] == [96, 96]


def test_too_few_pictures_are_told_before_any_work(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "diffmark.evaluation.own_model.encode", lambda *_: pytest.fail("a picture was encoded")
    )
    _codec().save_pretrained(tmp_path / "codec")
    arguments = [
        "--model",
        tmp_path / "vae",
        "--images",
        tmp_path / "pictures",
        "--codec",
        tmp_path / "codec",
    ]
    monkeypatch.setattr(sys, "argv", ["diffmark", "calibrate", *map(str, arguments), "--crops", "2"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "at least 20 unmarked images, got 16" in capsys.readouterr().err


def test_the_folder_follows_from_the_codec(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _codec().save_pretrained(tmp_path / "codec")
    arguments = ["--model", "vae", "--codec", "codec", "--images", "pictures", "--count", 1, "--crops", 18]
    monkeypatch.setattr(sys, "argv", ["diffmark", "calibrate", *map(str, arguments)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "written to codec-calibrated" in capsys.readouterr().err
    assert Codec.from_pretrained(tmp_path / "codec-calibrated").calibration is not None


def test_enough_images_give_no_warning(run, tmp_path):
    codec, _, warned = run(_codec().save_pretrained(tmp_path / "codec"), "--crops", 248)
    assert codec.calibration.negatives == 1000
    assert "too few" not in warned


def test_blind_verdicts_hold_for_the_autoencoders_that_were_measured(run, pictures, tmp_path):
    torch.manual_seed(1)
    before, third = (_vae(scaling_factor=0.18215).eval() for _ in range(2))
    codec = _codec()
    codec.calibration = calibrate(codec, before, pictures, crops=4)
    folder = codec.save_pretrained(tmp_path / "codec")
    mine = load_vae(tmp_path / "vae")

    def tests(codec):
        return [Detector(codec, vae, fpr=0.1).detect(pictures[0]).test for vae in (mine, before, third)]

    assert tests(run(folder)[0]) == ["blind", "blind", "none"]
    assert tests(run(folder, "--fresh", "--half")[0]) == ["blind", "none", "none"]


def test_what_lies_beside_the_codec_comes_along(run, tmp_path):
    folder = _codec().save_pretrained(tmp_path / "codec")
    _build("sd").pipe.vae.save_pretrained(folder / "vae")
    run(folder, "--half")
    assert (tmp_path / "mine" / "vae" / "config.json").is_file()


def test_the_stricter_of_two_calibrations_holds_for_both():
    easy, hard = Calibration.measure(np.linspace(0, 1, 2000)), Calibration.measure(np.linspace(0, 3, 500))
    both = hard.stricter(easy)
    assert both.negatives == 500
    for score in (0.5, 0.9995, 2.0, 2.99, 5.0):
        assert both.p_value(score) >= max(easy.p_value(score), hard.p_value(score))
    assert both.p_value(5.0) == hard.smallest
    assert easy.stricter(hard).tail == both.tail
