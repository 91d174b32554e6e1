from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec
from PIL import Image

from diffmark import cli
from diffmark.embedding import embed
from diffmark.secret import random_secrets
from diffmark.vae import FamilyError, decode, encode


@pytest.fixture(scope="module")
def vae():
    return _build("sd").pipe.vae


@pytest.fixture
def photo():
    return Image.fromarray(np.random.default_rng(0).integers(60, 200, (64, 64, 3)).astype(np.uint8))


def test_the_decoded_difference_is_added(photo, vae, secret):
    codec = tiny_codec()
    pixels = torch.from_numpy(np.asarray(photo, np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        z = encode(vae, pixels)
        difference = decode(vae, z + 8 * codec.delta(secret)) - decode(vae, z)
    marked = np.asarray(embed(photo, codec, vae, secret, strength=8.0), float)
    expected = np.asarray(photo, float) + 127.5 * difference[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(marked, expected.round().clip(0, 255), atol=1)
    assert not np.array_equal(marked, np.asarray(photo))


def test_any_size_and_strength_zero(vae, secret):
    photo = Image.fromarray(np.random.default_rng(1).integers(60, 200, (100, 210, 3)).astype(np.uint8))
    assert embed(photo, tiny_codec(), vae, secret, 8.0).size == (210, 100)
    assert np.array_equal(np.asarray(embed(photo, tiny_codec(), vae, secret, 0.0)), np.asarray(photo))


def test_a_codec_knows_its_own_strength(photo, vae, secret):
    codec = tiny_codec(embed_strength=8.0)
    assert (
        embed(photo, codec, vae, secret).tobytes() == embed(photo, tiny_codec(), vae, secret, 8.0).tobytes()
    )
    assert embed(photo, codec, vae, secret, 1.0).tobytes() != embed(photo, codec, vae, secret).tobytes()
    for wrong in (0, -1.0, float("nan"), True):
        with pytest.raises(ValueError, match="embed_strength is a number above 0"):
            tiny_codec(embed_strength=wrong)


def test_bad_arguments(photo, vae, secret):
    with pytest.raises(FamilyError):
        embed(photo, tiny_codec(16), vae, secret)
    with pytest.raises(ValueError, match="one secret, got 2"):
        embed(photo, tiny_codec(), vae, random_secrets(2))
    with pytest.raises(ValueError, match="strength"):
        embed(photo, tiny_codec(), vae, secret, float("inf"))


def test_command(photo, vae, tmp_path, monkeypatch, capsys):
    codec = tiny_codec(embed_strength=1.5).save_pretrained(tmp_path / "codec")
    vae.save_pretrained(codec / "vae")
    exif = Image.Exif()
    exif[0x010E] = "a description"
    exif[0x0112] = 6
    (tmp_path / "in").mkdir()
    photo.save(tmp_path / "in" / "a.jpg", exif=exif)
    photo.resize((80, 40)).save(tmp_path / "in" / "b.png")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", "embed", *map(str, arguments), "--codec", str(codec)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr()

    code, text = run(tmp_path / "in", "--out", tmp_path / "out", "--json")
    records = [json.loads(line) for line in text.out.splitlines()]
    assert (code, len(records), len({r["secret"] for r in records})) == (0, 2, 2)
    assert {r["strength"] for r in records} == {1.5}
    with Image.open(tmp_path / "out" / "a.png") as marked:
        assert marked.getexif()[0x010E] == "a description"
        assert 0x0112 not in marked.getexif()
    with Image.open(tmp_path / "out" / "b.png") as marked:
        assert marked.size == (80, 40)
    code, text = run(tmp_path / "in", "--out", tmp_path / "out")
    assert (code, "there already" in text.err) == (2, True)
    for name in ("one.jpg", "one.webp"):
        code, text = run(tmp_path / "in" / "b.png", "--out", tmp_path / name, "--secret", "0" * 16)
        assert (code, "0" * 16 in text.out) == (0, True)
    assert run(tmp_path / "nothing.png", "--out", tmp_path / "x.png")[0] == 2
