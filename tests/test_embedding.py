from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec
from diffusers import AutoencoderTiny
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from diffmark import cli
from diffmark.images import read_image
from diffmark.latent.vae import FamilyError, decode, encode
from diffmark.mark.image import embed
from diffmark.records import RECORDS
from diffmark.secret import random_secrets


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


def test_an_autoencoder_that_overflows_is_told(photo, secret):
    broken = AutoencoderTiny().eval()
    with torch.no_grad():
        broken.decoder.layers[-1].bias.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        embed(photo, tiny_codec(), broken, secret)


def test_bad_arguments(photo, vae, secret):
    with pytest.raises(FamilyError):
        embed(photo, tiny_codec(16), vae, secret)
    with pytest.raises(ValueError, match="one secret, got 2"):
        embed(photo, tiny_codec(), vae, random_secrets(2))
    with pytest.raises(ValueError, match="strength"):
        embed(photo, tiny_codec(), vae, secret, float("inf"))


@pytest.fixture
def run(vae, tmp_path, monkeypatch, capsys):
    """Run `diffmark embed ...` with a codec of its own: (exit code, output)."""
    codec = tiny_codec().save_pretrained(tmp_path / "codec")
    vae.save_pretrained(codec / "vae")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", "embed", *map(str, arguments), "--codec", str(codec)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr()

    return call


@pytest.fixture
def folder(photo, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x010E] = "a description"
    exif[0x0112] = 6
    photo.save(folder / "a.jpg", exif=exif)
    photo.resize((80, 40)).save(folder / "b.png")
    photo.save(folder / "c.tiff")
    return folder


def test_a_folder_keeps_its_formats(run, folder, tmp_path):
    code, text = run(folder, "--out", tmp_path / "out", "--json")
    records = [json.loads(line) for line in text.out.splitlines()]
    assert (code, len(records), len({r["secret"] for r in records})) == (0, 3, 3)
    assert {r["strength"] for r in records} == {1.0}
    for name, format in (("a.jpg", "JPEG"), ("b.png", "PNG"), ("c.png", "PNG")):
        with Image.open(tmp_path / "out" / name) as marked:
            assert marked.format == format
    with Image.open(tmp_path / "out" / "b.png") as marked:
        assert marked.size == (80, 40)
    assert run(folder, "--out", tmp_path / "webp", "--format", "webp")[0] == 0
    assert {path.name for path in (tmp_path / "webp").iterdir()} == {"a.webp", "b.webp", "c.webp", RECORDS}


def test_one_file(run, folder, tmp_path):
    for name in ("one.jpg", "one.webp"):
        code, text = run(folder / "b.png", "--out", tmp_path / name, "--secret", "0" * 16)
        assert (code, "0" * 16 in text.out) == (0, True)
    code, text = run(folder / "b.png", "--out", tmp_path / "one.jpg")
    assert (code, "there already" in text.err) == (2, True)
    assert run(tmp_path / "nothing.png", "--out", tmp_path / "x.png")[0] == 2
    code, text = run(folder / "b.png", "--out", tmp_path / "x.png", "--format", "jpg")
    assert (code, "--format is for a folder" in text.err) == (2, True)


def test_a_bad_file_loses_no_other_and_a_rerun_goes_on(run, folder, tmp_path):
    out = tmp_path / "out"
    (folder / "b.png").write_bytes(b"nothing")
    code, text = run(folder, folder / "missing.png", "--out", out)
    assert code == 2
    assert f"{folder / 'b.png'}  error: not an image" in text.out
    assert "error: no such file" in text.out
    assert {path.name for path in out.iterdir()} == {"a.jpg", "c.png", RECORDS}
    before = (out / "a.jpg").read_bytes()
    Image.new("RGB", (64, 64)).save(folder / "b.png")
    code, text = run(folder, "--out", out, "--json")
    records = [json.loads(line) for line in text.out.splitlines()]
    assert code == 0
    assert [r.get("skipped") for r in records] == ["there already", None, "there already"]
    assert (out / "a.jpg").read_bytes() == before
    assert {path.name for path in out.iterdir()} == {"a.jpg", "b.png", "c.png", RECORDS}
    assert (out / RECORDS).stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in (out / RECORDS).read_text().splitlines()]
    assert [Path(line["file"]).name for line in lines] == ["a.jpg", "c.png", "b.png"]


def test_no_image_takes_the_place_of_another(run, folder, photo, tmp_path):
    code, text = run(folder, "--out", folder)
    assert (code, "is one of the images" in text.err) == (2, True)
    photo.save(folder / "a.png")
    code, text = run(folder, "--out", tmp_path / "out", "--format", "png")
    assert (code, "2 images would become" in text.err) == (2, True)
    assert not (tmp_path / "out").exists()


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf tiff:Orientation="6">by me</rdf></x:xmpmeta>'


@pytest.mark.parametrize("target", ["a.png", "a.jpg", "a.webp"])
def test_metadata_is_kept_and_the_picture_stays_upright(run, photo, tmp_path, target):
    text = PngInfo()
    text.add_text("Author", "somebody")
    text.add_itxt("Title", "Größe", "de", "Titel")
    text.add_itxt("XML:com.adobe.xmp", XMP.decode())
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    photo.crop((0, 0, 64, 32)).save(tmp_path / "in.png", pnginfo=text, dpi=(300, 300), exif=exif)
    assert run(tmp_path / "in.png", "--out", tmp_path / target, "--strength", 0)[0] == 0
    with Image.open(tmp_path / target) as marked:
        marked.load()
        assert marked.getexif()[0x010E] == "a description"
        assert 0x0112 not in marked.getexif()
        assert b"by me" in marked.info["xmp"]
        if target != "a.webp":  # which has no place for it
            assert marked.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        if target == "a.png":
            assert marked.text["Author"] == "somebody"
            assert (marked.text["Title"], marked.text["Title"].lang) == ("Größe", "de")
    assert read_image(tmp_path / target).image.size == (32, 64)


def test_the_comment_of_a_jpeg_is_kept(run, photo, tmp_path):
    photo.save(tmp_path / "in.jpg", comment=b"by me")
    assert run(tmp_path / "in.jpg", "--out", tmp_path / "out.jpg", "--strength", 0)[0] == 0
    with Image.open(tmp_path / "out.jpg") as marked:
        assert marked.info["comment"] == b"by me"


def test_a_tiff_with_a_place_keeps_it_without_the_tags_of_its_own_pixels(run, photo, tmp_path):
    exif = Image.Exif()
    exif[0x8825] = exif.get_ifd(0x8825)
    exif[0x8825][1] = "N"
    photo.save(tmp_path / "in.tiff", exif=exif)
    assert run(tmp_path / "in.tiff", "--out", tmp_path / "out.jpg")[0] == 0
    with Image.open(tmp_path / "out.jpg") as marked:
        assert marked.getexif().get_ifd(0x8825)[1] == "N"
        assert set(marked.getexif()) == {0x8825}


def test_a_profile_is_kept_where_the_pixels_are_still_in_its_colours(run, photo, tmp_path):
    used = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name, profile, kept in (("used", used, None), ("broken", b"no profile", b"no profile")):
        photo.save(tmp_path / f"{name}.png", icc_profile=profile)
        for strength in (0, 1):
            out = tmp_path / f"{name}-{strength}.png"
            assert run(tmp_path / f"{name}.png", "--out", out, "--strength", strength)[0] == 0
            with Image.open(out) as marked:
                assert marked.info.get("icc_profile") == kept


def test_metadata_that_does_not_fit_is_an_error_of_that_image(run, photo, tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "x" * 70_000
    photo.save(tmp_path / "in.png", exif=exif)
    code, text = run(tmp_path / "in.png", "--out", tmp_path / "out.jpg")
    assert (code, "EXIF data is too long" in text.out) == (2, True)
    assert not list(tmp_path.glob("out*"))
