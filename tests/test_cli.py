from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_codec
from PIL import Image

from diffmark import cli
from diffmark.cli.reference import reference
from diffmark.latent.codec import Codec
from diffmark.latent.injection import Injection
from diffmark.mark.generation import ImageSpec, Sampling, generate, generate_into
from diffmark.mark.loading import load_pipeline
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import from_hex, random_secrets, to_hex

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `diffmark ...` in this process: (exit code, stdout, stderr)."""

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "argv", ["diffmark", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call


@pytest.fixture(scope="session")
def codec_folder(tmp_path_factory):
    return tiny_codec(injection=Injection("final")).save_pretrained(tmp_path_factory.mktemp("codec"))


def test_help_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['diffmark', '--help']\n"
        "from diffmark.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'numba', 'sqlalchemy', 'scipy'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "detect" in done.stdout


def test_the_reference_is_current():
    assert (ROOT / "docs" / "cli.md").read_text() == reference(), "run `make docs`"


def test_generate_writes_pictures_and_records(run, tmp_path, model_folder, codec_folder):
    out = tmp_path / "out"
    shared = ("--model", model_folder, "--codec", codec_folder, "--out", out, "--steps", 2, "--seed", 7)
    code, text, _ = run("generate", "a hill", *shared, "--count", 2)
    assert code == 0
    records = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
    assert [r["file"] for r in records] == ["00000.png", "00001.png"]
    assert [r["seed"] for r in records] == [7, 8]
    assert records[0]["secret"] != records[1]["secret"]
    assert records[0]["secret"] in text
    (note,) = records[0]["notes"]  # of a codec without training
    assert "of 64 bits are read back, 45 are needed" in note
    assert f"note: {note}" in text
    with Image.open(out / "00000.png") as image:
        assert image.size == (64, 64)
    first = (out / "00000.png").read_bytes()
    (tmp_path / "prompts.txt").write_text("a lake\n\na tree\n")
    code, text, _ = run(
        "generate", "--prompts", tmp_path / "prompts.txt", *shared, "--secret", "0" * 16, "--json"
    )
    assert code == 0
    assert [json.loads(line)["prompt"] for line in text.splitlines()] == ["a lake", "a tree"]
    assert len((out / "images.jsonl").read_text().splitlines()) == 4
    assert (out / "00000.png").read_bytes() == first  # what was there is kept
    assert not list(out.glob("*.part"))


def test_a_model_without_a_latent_codec_is_marked_in_pixels(run, tmp_path, model_folder):
    out, secret = tmp_path / "out", "0123456789abcdef"
    shared = ("--model", model_folder, "--out", out, "--steps", 1, "--secret", secret)
    code, _, said = run("generate", "a hill", *shared)
    assert (code, "marked in the pixel layer alone" in said) == (0, True)
    (record,) = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
    assert record["layers"] == "pixel"
    assert not {"codec", "strength", "injection"} & record.keys()
    with Image.open(out / "00000.png") as image:
        assert image.size == (64, 64)
    code, _, said = run("generate", "a hill", *shared, "--layers", "generation")
    assert (code, "no codec ships for the latents of" in said) == (2, True)
    code, _, said = run("generate", "a hill", *shared, "--injection", "late")
    assert (code, "--injection is for a latent codec" in said) == (2, True)
    assert len(list(out.glob("*.png"))) == 1


@pytest.mark.parametrize("command", ["detect", "embed", "generate", "identify"])
def test_commands_say_that_a_codec_was_retired(run, tmp_path, command):
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    arguments = [tmp_path / "a.png", "--codec", "sd"]
    if command in ("embed", "generate"):
        arguments += ["--out", tmp_path / "out"]
    if command == "identify":
        run("registry", "init")
    code, _, said = run(command, *arguments)
    assert (code, "was retired" in said, "--codec pixel" in said) == (2, True, True)


def test_the_same_order_gives_the_same_picture_and_strength_zero_the_plain_one(model_folder, secret):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    codec, spec = tiny_codec(), ImageSpec("a hill", secret, seed=3)
    sampling = Sampling(steps=3, guidance=2.0)
    marked = np.asarray(generate(pipe, codec, spec, sampling))
    assert np.array_equal(marked, np.asarray(generate(pipe, codec, spec, sampling)))
    off = np.asarray(generate(pipe, codec, spec, Sampling(3, 2.0, strength=0.0)))
    seed = torch.Generator().manual_seed(3)
    plain = pipe("a hill", num_inference_steps=3, guidance_scale=2.0, generator=seed).images[0]
    assert np.array_equal(off, np.asarray(plain))
    assert not np.array_equal(marked, off)


def test_a_strength_of_zero_is_said(tmp_path, model_folder, secret):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    order = ([ImageSpec("one", secret, 0)], Sampling(steps=1, strength=0))
    (record,) = generate_into(tmp_path / "a", pipe, tiny_codec(), *order)
    assert record["notes"] == ["a strength of 0 writes no mark: the picture is not marked"]
    (record,) = generate_into(tmp_path / "b", pipe, tiny_codec(), *order, pixel=PixelCodec())
    assert "the pixel layer marks alone" in record["notes"][-1]


def test_a_crash_loses_no_finished_picture(tmp_path, model_folder, secret):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)

    def specs():
        yield ImageSpec("one", secret, 0)
        yield ImageSpec("two", secret, 1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(generate_into(tmp_path, pipe, tiny_codec(), specs(), Sampling(steps=1)))
    files = [json.loads(line)["file"] for line in (tmp_path / "images.jsonl").read_text().splitlines()]
    assert files == ["00000.png", "00001.png"]
    for name in files:
        with Image.open(tmp_path / name) as image:
            image.load()


def test_detect_says_what_it_read(run, tmp_path, model_folder, codec_folder):
    for name in ("b.png", "a.jpg", "sub/c.webp"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (80, 60), "teal").save(path)
    (tmp_path / "notes.txt").write_text("not an image")
    shared = ("--codec", codec_folder, "--vae", model_folder)
    code, text, _ = run("detect", tmp_path, *shared)
    assert code == 1  # no secret and no calibration: undecided
    assert "undecided" in text
    assert text.index("a.jpg") < text.index("b.png") < text.index("c.webp")
    assert "notes.txt" not in text
    # The secret that is read back from a picture certainly matches it.
    read = json.loads(run("detect", tmp_path / "b.png", *shared, "--json")[1])["secret"]
    code, text, _ = run("detect", tmp_path / "b.png", *shared, "--secret", read, "--json")
    assert (code, json.loads(text)["matches"]) == (0, 64)
    code, text, _ = run("detect", str(tmp_path / "*.png"), *shared, "--secret", read)
    assert code == 0
    assert "64 of 64 bits match" in text
    wrong = to_hex(1 - from_hex(read, 64))
    assert run("detect", tmp_path / "b.png", *shared, "--secret", wrong)[0] == 1
    code, text, _ = run(
        "detect", "-", *shared, "--json", stdin=f"{tmp_path / 'b.png'}\n{tmp_path / 'a.jpg'}\n"
    )
    assert [Path(json.loads(line)["source"]).name for line in text.splitlines()] == ["b.png", "a.jpg"]


def test_detect_reports_bad_files_and_goes_on(run, tmp_path, model_folder, codec_folder):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    Image.new("RGB", (64, 64)).save(tmp_path / "good.png")
    shared = ("--codec", codec_folder, "--vae", model_folder)
    code, text, _ = run("detect", tmp_path, tmp_path / "missing.png", *shared)
    assert code == 2
    assert "not an image" in text
    assert "no such file" in text
    assert "undecided" in text
    code, text, _ = run("detect", tmp_path / "bad.png", *shared, "--json")
    assert code == 2
    assert "not an image" in json.loads(text)["error"]


def test_payloads_from_end_to_end(run, tmp_path, model_folder, codec_folder):
    key = tmp_path / "key"
    assert run("secret", "key", key)[0] == 0
    assert key.stat().st_mode & 0o077 == 0
    assert run("secret", "key", key)[0] == 2  # a key is never overwritten
    shared = ("--codec", codec_folder, "--payload-key", key)
    code, text, _ = run(
        "generate",
        "x",
        *shared,
        "--model",
        model_folder,
        "--account",
        42,
        "--steps",
        1,
        "--out",
        tmp_path,
        "--json",
    )
    record = json.loads(text)
    assert (code, record["account"]) == (0, 42)
    assert "account 42" in run("secret", "show", record["secret"], "--payload-key", key)[1]
    other = ("--payload-key", key, "--payload-bits", "16,12,8")
    assert "does not verify" in run("secret", "show", record["secret"], *other)[1]
    assert "three numbers" in run("secret", "show", record["secret"], *other[:3], "20;13")[2]
    code, text, _ = run("detect", tmp_path / "00000.png", *shared, "--vae", model_folder, "--json")
    assert json.loads(text)["test"] == "payload"


def test_secret_commands(run):
    code, text, _ = run("secret", "new", "--count", 3, "--length", 48)
    lines = text.split()
    assert (code, len(set(lines)), {len(line) for line in lines}) == (0, 3, {12})
    assert "bits   " + "0001" * 16 in run("secret", "show", "1" * 16)[1]


def test_info(run, codec_folder):
    code, text, _ = run("info", "--json")
    assert code == 0
    assert json.loads(text)["torch"] == torch.__version__
    code, text, _ = run("info", codec_folder)
    assert "not calibrated" in text
    assert "none are needed" in run("info", "vista")[1]
    assert run("info")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("detect", "x.png", "--codec", "nosuch"), "no codec at 'nosuch'"),
        (("detect", "--codec", "nosuch"), "Missing argument"),
        (("generate", "--codec", "nosuch", "x"), "no codec at 'nosuch'"),
        (("generate",), "either a PROMPT or --prompts"),
        (("generate", "  "), "there is no prompt"),
        (("detect", "x.png", "--codec", "nosuch", "--device", "foo"), "no codec"),
        (("secret", "show", "xyz"), "hex digits"),
        (("info", "nosuch"), "no codec"),
        (("nosuch",), "No such command"),
    ],
)
def test_bad_usage_ends_in_one_line_and_exit_code_2(run, arguments, says):
    import re

    code, _, err = run(*arguments)
    assert code == 2
    assert re.search(says, err)
    assert "Traceback" not in err


def test_bad_combinations(run, tmp_path, model_folder, codec_folder):
    shared = ("--model", model_folder, "--codec", codec_folder, "--out", tmp_path)
    (tmp_path / "key").write_text("not hex")
    (tmp_path / "key").chmod(0o600)
    for arguments, says in [
        (("generate", "x", *shared, "--account", 1), "go together"),
        (
            ("generate", "x", *shared, "--account", 1, "--payload-key", tmp_path / "key"),
            "holds no payload key",
        ),
        (("generate", "x", *shared, "--secret", "12"), "16 hex digits, got 2"),
        (("generate", "x", *shared, "--device", "foo"), "no device 'foo' here"),
        (
            ("detect", "x.png", *shared[2:4], "--vae", model_folder, "--device", "cuda:9"),
            "no device 'cuda:9' here",
        ),
        (("generate", "x", *shared, "--injection", "early"), "unknown injection mode"),
        (("generate", "x", *shared[2:], "--model", tmp_path), "is no folder of a diffusers pipeline"),
        (("detect", str(tmp_path / "*.png"), "--codec", codec_folder, "--vae", model_folder), "no images"),
    ]:
        code, _, err = run(*arguments)
        assert code == 2, arguments
        assert says in err
    key = tmp_path / "good"
    key.write_text("00" * 32)
    code, _, err = run("generate", "x", *shared, "--account", 1, "--payload-key", key)
    assert (code, "chmod 600" in err) == (2, True)
    key.chmod(0o600)
    code, _, err = run("generate", "x", *shared, "--account", 1, "--payload-key", key, "--secret", "0" * 16)
    assert (code, "leave out --secret" in err) == (2, True)
    assert not list(tmp_path.glob("*.png"))


def test_debug_shows_the_traceback(run, monkeypatch):
    monkeypatch.setenv("DIFFMARK_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["diffmark", "info", "nosuch"])
    with pytest.raises(ValueError, match="no codec"):
        cli.main()


def test_random_secrets_differ_between_runs(codec_folder):
    assert Codec.from_pretrained(codec_folder).injection.mode == "final"
    assert to_hex(random_secrets()[0]) != to_hex(random_secrets()[0])
