from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec
from PIL import Image

from diffmark import cli
from diffmark.calibration import Calibration
from diffmark.codec import Codec
from diffmark.injection import Injection
from diffmark.own_model import calibrate


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
    from diffmark.vae import decode, encode

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


def test_the_command_writes_a_calibrated_codec(pictures, tmp_path, monkeypatch, capsys):
    (tmp_path / "pictures").mkdir()
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / "pictures" / f"{number}.png")
    _build("sd").pipe.vae.save_pretrained(tmp_path / "vae")
    _codec().save_pretrained(tmp_path / "codec")
    arguments = [
        "--model",
        tmp_path / "vae",
        "--images",
        tmp_path / "pictures",
        "--codec",
        tmp_path / "codec",
    ]
    arguments += ["--out", tmp_path / "mine", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["diffmark", "calibrate", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    printed = json.loads(capsys.readouterr().out)
    calibration = Codec.from_pretrained(tmp_path / "mine").calibration
    assert calibration is not None
    assert calibration.measured == printed
    assert printed["marked"] == 4


def test_the_stricter_of_two_calibrations_holds_for_both():
    easy, hard = Calibration.measure(np.linspace(0, 1, 2000)), Calibration.measure(np.linspace(0, 3, 500))
    both = hard.stricter(easy)
    assert both.negatives == 500
    for score in (0.5, 0.9995, 2.0, 2.99, 5.0):
        assert both.p_value(score) >= max(easy.p_value(score), hard.p_value(score))
    assert both.p_value(5.0) == hard.smallest
    assert easy.stricter(hard).tail == both.tail
