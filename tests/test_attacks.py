from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image

from diffmark import cli
from diffmark.attacks import ATTACKS, attack

SIZE_CHANGING = {"quarter_crop", "repost", "framed_screenshot", "resize", "screenshot", "padding"}


@pytest.fixture
def image():
    y, x = np.mgrid[0:96, 0:128]
    texture = np.random.default_rng(0).integers(0, 40, (96, 128, 3))
    return Image.fromarray((np.stack([x, 2 * y, x + y], -1) * 0.9 + texture).clip(0, 255).astype(np.uint8))


def difference(a, b):
    return np.abs(np.asarray(a, float) - np.asarray(b, float)).mean()


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_seeded_and_gets_harsher(name, image):
    mild, harsh = attack(name, image, 0.1, seed=3), attack(name, image, 1.0, seed=3)
    assert np.array_equal(np.asarray(harsh), np.asarray(attack(name, image, 1.0, seed=3)))
    assert harsh.mode == "RGB"
    if name not in SIZE_CHANGING:
        assert harsh.size == image.size
        assert difference(harsh, image) > 0
        if name != "flip":
            assert difference(harsh, image) > difference(mild, image)


@pytest.mark.parametrize(
    "name", ["rotation", "resized_crop", "erasing", "brightness", "contrast", "blur", "noise"]
)
def test_strength_zero_of_the_waves_distortions_changes_nothing(name, image):
    assert difference(attack(name, image, 0.0), image) == 0


def test_parameters_are_those_of_waves(image):
    pixels = np.asarray(image, float)
    assert ATTACKS["rotation"].value(0.2) == pytest.approx(9)
    np.testing.assert_array_equal(np.asarray(attack("rotation", image, 1.0)), np.asarray(image.rotate(45)))
    np.testing.assert_allclose(
        np.asarray(attack("brightness", image, 1.0)), np.minimum(2 * pixels, 255), atol=1
    )
    erased = np.asarray(attack("erasing", image, 1.0, seed=1))
    side = (erased.sum(axis=-1) == 0).sum() ** 0.5
    assert side**2 / (96 * 128) == pytest.approx(0.25, abs=0.02)
    flat = Image.new("RGB", (256, 256), (128, 128, 128))
    assert (np.asarray(attack("noise", flat, 0.5), float) / 255).std() == pytest.approx(0.05, rel=0.02)
    assert ATTACKS["jpeg"].value(1.0) == 10
    assert ATTACKS["jpeg"].value(0.0) == 90
    assert ATTACKS["blur"].value(1.0) == 20
    # Half of the area, same aspect, resized back: a horizontal ramp keeps 71% of its range.
    ramp = Image.fromarray(np.repeat(np.tile(np.arange(256, dtype=np.uint8), (256, 1))[..., None], 3, -1))
    assert np.ptp(np.asarray(attack("resized_crop", ramp, 1.0))) == pytest.approx(255 * 0.5**0.5, abs=3)


def test_sizes():
    image = Image.new("RGB", (2000, 1000), "red")
    assert attack("social", image, 0.5).size == (1080, 540)
    assert attack("social", image.resize((600, 300)), 0.5).size == (600, 300)
    assert attack("padding", image, 1.0).size == (3000, 1500)
    assert attack("resize", image, 1.0).size == (500, 250)


def test_one_pixel_survives_every_attack():
    for name in ATTACKS:
        assert min(attack(name, Image.new("RGB", (1, 1), "red"), 1.0).size) >= 1


def test_a_batch_counts_its_seeds(image):
    batch = ATTACKS["noise"].on_all([image, image], 0.5, base_seed=10)
    assert np.array_equal(np.asarray(batch[1]), np.asarray(attack("noise", image, 0.5, seed=11)))
    assert difference(*batch) > 0


def test_bad_arguments(image):
    with pytest.raises(ValueError, match="no attack 'melt'; there are rotation"):
        attack("melt", image, 0.5)
    for strength in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            attack("blur", image, strength)


def test_command(image, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", "attack", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0

    image.save(tmp_path / "in.png")
    assert run("rotation", "--strength", 0.5, tmp_path / "in.png", tmp_path / "out.png") == 0
    with Image.open(tmp_path / "out.png") as out:
        assert np.array_equal(np.asarray(out), np.asarray(image.rotate(22.5)))
    assert run("list") == 0
    assert "quality" in capsys.readouterr().out
    assert run("blur") == 2
    assert run("melt", tmp_path / "in.png", tmp_path / "out.png") == 2
