"""Several readers at once: who is asked, who is named, and what the p-value counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import _build
from PIL import Image, ImageOps

import diffmark
from diffmark.cli import main
from diffmark.detection.decision import Detection
from diffmark.detection.joint import JointDetector, open_detector
from diffmark.detection.latent import Detector
from diffmark.detection.reader import better
from diffmark.images import ImageError
from diffmark.mark.context import watermark
from diffmark.pixel.animation import Animation
from diffmark.pixel.codec import PixelCodec
from diffmark.vista import load_pipeline
from diffmark.vista.paint import painted_scenes

SECRET = "0123456789abcdef"
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def scene():
    return next(painted_scenes(1, first=71_000))


@pytest.fixture(scope="module")
def marked(scene):
    return PixelCodec().embed(scene, SECRET).image


@pytest.fixture(scope="module")
def joint():
    return open_detector()


def test_a_clear_pixel_mark_is_answered_without_loading_another_reader(marked):
    fresh = open_detector()
    assert isinstance(fresh, JointDetector)
    found = fresh.detect(marked, SECRET)
    assert (found.verdict, found.reader, found.tries) == ("marked", "pixel", 2)
    assert found.key_id == PixelCodec().key.id
    assert "latent" not in vars(fresh)


def test_the_latent_codec_is_asked_where_the_pixel_layer_sees_nothing(joint):
    latent, pipe = Detector.from_pretrained("vista"), load_pipeline("vista")
    with watermark(pipe, latent.codec, SECRET, pixel=False):
        generator = torch.Generator().manual_seed(1)
        image = pipe("a lake", num_inference_steps=10, guidance_scale=4.0, generator=generator).images[0]
    found = joint.detect(image, SECRET)
    assert (found.verdict, found.reader, found.tries) == ("marked", "vista", 2)
    alone = latent.detect(image, SECRET)
    assert found.matches == alone.matches
    assert found.p_value == pytest.approx(2 * alone.p_value, rel=1e-6)  # two readers are two tries


def test_an_unmarked_picture_is_not_marked_for_either(joint, scene):
    assert joint.detect(scene, SECRET).verdict == "not marked"
    assert not joint.detect(scene).marked


def test_order_and_errors_keep_their_places(joint, scene, marked, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"nothing")
    outcomes = list(joint.scan([scene, bad, marked], SECRET))
    assert [getattr(found, "verdict", "error") for found in outcomes] == ["not marked", "error", "marked"]
    with pytest.raises(ImageError):
        list(joint.detect_many([bad], SECRET))


def test_the_smaller_p_value_answers():
    def answer(p, reader):
        zeros = np.zeros(64, np.uint8)
        return Detection("s", zeros, np.zeros((64, 2)), "undecided", "secret", p, 1e-3, reader=reader)

    assert better(answer(0.5, "pixel"), answer(0.1, "vista")).reader == "vista"
    assert better(answer(0.1, "pixel"), answer(0.1, "vista")).reader == "pixel"
    assert better(answer(None, "pixel"), answer(None, "vista")).reader == "pixel"


def test_another_key_reads_chance(marked):
    found = open_detector("pixel", key=KEY).detect(marked, SECRET)
    assert found.verdict == "not marked"
    assert found.key_id != PixelCodec().key.id
    with pytest.raises(ValueError, match="without an autoencoder"):
        open_detector("pixel", vae="somewhere")


def test_the_map_shows_what_is_missing(joint, scene, marked):
    found = joint.detect(marked, SECRET)
    whole = joint.evidence_map(marked, found)
    assert whole.missing < 0.1  # an untouched picture is not accused
    pasted = marked.copy()
    other = ImageOps.mirror(scene).crop((128, 0, 256, 256))
    pasted.paste(other, (128, 0))
    part = joint.evidence_map(pasted, joint.detect(pasted, SECRET))
    assert part.missing > 0.2
    left, right = np.hsplit(part.scores, 2)
    assert left.mean() > right.mean() + 1


def test_a_pipeline_marks_its_pictures_under_a_key_and_is_as_it_was(secret):
    rig = _build("sd")
    pixel = PixelCodec(KEY)
    processor = rig.pipe.image_processor
    arguments = dict(rig.arguments, num_inference_steps=2, height=256, width=256, output_type="pil")
    with watermark(rig.pipe, None, secret, pixel=pixel):
        image = rig.pipe(**arguments).images[0]
    assert "postprocess" not in vars(processor)
    found = diffmark.detect(image, secret, key=KEY)
    assert (found.verdict, found.key_id) == ("marked", pixel.key.id)
    assert not diffmark.detect(image, secret).marked


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png"])
def test_every_frame_of_an_animation_is_marked(tmp_path, capsys, suffix, scene):
    source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    frames = [scene.rotate(90 * turn) for turn in range(3)]
    options = {"lossless": True} if suffix == ".webp" else {}
    frames[0].save(
        source, save_all=True, append_images=frames[1:], duration=[80, 120, 160], loop=0, **options
    )
    assert run("embed", source, "--out", out, "--secret", SECRET, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["frames"] == 3
    found = Animation.open(out)
    assert found.durations == [80, 120, 160]
    readings = [diffmark.detect(frame, SECRET) for frame in found.frames]
    assert all(reading.marked for reading in readings)
    assert run("embed", source, "--out", tmp_path / "out.jpg", "--secret", SECRET) == 2
    assert "cannot hold an animation" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".gif", ".webp", ".png"])
def test_an_animation_keeps_its_metadata_and_is_laid_on_white_like_a_picture(tmp_path, capsys, suffix, scene):
    source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
    frames = []
    for turn in range(2):
        frame, mask = scene.rotate(90 * turn), Image.new("L", scene.size, 255)
        mask.paste(0, (0, 0, 64, 64))
        frame.putalpha(mask)
        frames.append(frame)
    exif = Image.Exif()
    exif[0x010E] = "a description"
    kept = {"comment": b"by me"} if suffix == ".gif" else {"exif": exif}
    kept |= {"lossless": True} if suffix == ".webp" else {}
    frames[0].save(source, save_all=True, append_images=frames[1:], duration=80, **kept)
    assert run("embed", source, "--out", out, "--secret", SECRET, "--json") == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["transparent parts were laid on white"]
    with Image.open(out) as marked:
        assert min(marked.convert("RGB").getpixel((32, 32))) > 240
        if suffix == ".gif":
            assert marked.info["comment"] == b"by me"
        else:
            assert marked.getexif()[0x010E] == "a description"


def test_an_animation_that_is_cut_off_is_not_marked_as_its_first_frame(tmp_path, capsys, scene):
    frames = [scene.rotate(90 * turn) for turn in range(3)]
    frames[0].save(tmp_path / "in.gif", save_all=True, append_images=frames[1:], duration=80)
    data = (tmp_path / "in.gif").read_bytes()
    (tmp_path / "in.gif").write_bytes(data[: len(data) * 7 // 10])
    assert run("embed", tmp_path / "in.gif", "--out", tmp_path / "out.gif") == 2
    assert "damaged or truncated" in capsys.readouterr().out
    assert not (tmp_path / "out.gif").exists()


@pytest.mark.filterwarnings("error")
def test_a_large_file_is_refused_without_a_warning_of_pillows(tmp_path, capsys):
    Image.new("1", (12000, 9000)).save(tmp_path / "huge.png")
    assert run("embed", tmp_path / "huge.png", "--out", tmp_path / "out.png", "--secret", SECRET) == 2
    assert "more than the limit of 100,000,000 pixels" in capsys.readouterr().out


def run(*arguments) -> int:
    import sys
    from unittest import mock

    with (
        mock.patch.object(sys, "argv", ["diffmark", *map(str, arguments)]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return int(ended.value.code or 0)


def test_embed_issues_keys_to_a_principal_and_records_them(tmp_path, capsys, scene):
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for number in range(2):
        scene.rotate(90 * number).save(folder / f"{number}.png")
    (folder / "bad.png").write_bytes(b"nothing")
    where = ["--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root"]
    assert run("embed", folder, "--out", out, "--principal", "user-42", *where) == 2
    capsys.readouterr()
    lines = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
    assert {line["principal"] for line in lines} == {"user-42"}
    assert len({line["secret"] for line in lines}) == 2
    assert run("identify", out / "0.png", "--reason", "test", "--json", *where) == 0
    assert "user-42" in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    assert run("--version") == 0
    assert diffmark.__version__ in capsys.readouterr().out


def test_pixels_of_every_kind_are_read(marked):
    array = np.asarray(marked)
    for image in (array, marked.convert("RGBA"), Image.fromarray(array)):
        assert diffmark.detect(image, SECRET).marked
