"""What new users stumbled over on the command line: arguments, waiting, strengths, what is printed."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pixel_vectors import SECRET, scene
from processes import ENVIRONMENT
from typer.main import get_command
from typer.testing import CliRunner

from diffmark import server
from diffmark.cli import app, evaluate
from diffmark.detection.joint import open_detector
from diffmark.registry import Registry, progress
from diffmark.secret import from_hex


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        scene(number, (200, 160)).save(folder / f"{number}.png")
    return folder


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done


def commands(command, path=()):
    """All commands with their names."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


def test_an_option_that_takes_one_value_is_refused_twice(pictures):
    done = run("detect", pictures, "--codec", "vista", "--codec", "pixel", code=2)
    assert "--codec is given 2 times" in done.stderr
    secrets = ("--secret", "0" * 16, "--secret", "1" * 16)
    run("detect", pictures, "--codec", "pixel", "--plain", "--key", "public", *secrets, code=1)


def test_json_is_lines_everywhere():
    told = {
        " ".join(path): option.help
        for path, command in commands(get_command(app))
        for option in command.params
        if "--json" in option.opts
    }
    assert len(told) > 10
    assert {text for text in told.values()} <= {
        "Print a JSON line for each row.",
        "Print a JSON line an image.",
        "Print the summary as a JSON line; rows are in the files.",
    }


@pytest.mark.parametrize("arguments", [("token", "list"), ("keys", "list"), ("registry", "log")])
def test_json_of_many_rows_is_a_line_each(tmp_path, arguments):
    where = ("--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root")
    run("keys", "issue", "a", "b", *where)
    for name in ("ann", "bob"):
        run("token", "create", name, *where)
    lines = run(*arguments, "--json", *where).stdout.splitlines()
    assert len(lines) >= 2
    assert all(isinstance(json.loads(line), dict) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("generate",), "give either a PROMPT or --prompts"),
        (("generate", "x", "--c2pa-cert", "c.pem"), "go together"),
        (("evaluate", "nosuch"), "no experiment 'nosuch'"),
        (("embed", "x.png", "--out", "y.xyz", "--codec", "vista"), "images are written as"),
        (("detect", "x.png", "--json", "--fpr", "1", "--fpr", "2"), "takes one value"),
    ],
)
def test_arguments_are_checked_before_torch_is_imported(arguments, says):
    program = (
        "import sys; from diffmark import cli; sys.argv = ['diffmark', *sys.argv[1:]]\n"
        "try: cli.main()\n"
        "finally: print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stdout.strip(), says in done.stderr) == (2, "False", True), done.stderr


def test_the_experiments_that_are_named_are_those_there_are():
    from diffmark.evaluation.experiments import EXPERIMENTS

    assert set(evaluate.EXPERIMENTS) == set(EXPERIMENTS)


def test_waiting_for_another_writer_is_said(tmp_path, monkeypatch, caplog):
    """The other process lets go as soon as the waiting was said: without it this would end in an error."""
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr("diffmark.registry.store.LOCK_TIMEOUT", 20)
    path = tmp_path / "registry.db"
    with Registry.open(f"sqlite:///{path}", actor="root") as registry:
        other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        class Release(logging.Handler):
            def emit(self, record):
                other.execute("ROLLBACK")

        handler = Release()
        progress.log.addHandler(handler)
        try:
            key = registry.issue("a")
        finally:
            progress.log.removeHandler(handler)
            other.close()
    assert key.principal == "a"
    assert [record.getMessage() for record in caplog.records] == [
        f"sqlite:///{path}: waiting for another process that writes, up to 20 s"
    ]


def test_a_bulk_run_that_has_nothing_left_to_do_says_so(pictures, tmp_path):
    command = ("bulk", pictures, "--out", tmp_path / "rows", "--codec", "pixel", "--key", "public", "--json")
    first, second = (json.loads(run(*command).stdout) for _ in range(2))
    assert (first["rows"], first["there_already"]) == (2, 0)
    assert (second["rows"], second["there_already"]) == (0, 2)


def test_one_marked_file_has_a_record_too(pictures, tmp_path):
    run("embed", pictures / "0.png", "--out", tmp_path / "marked.png", "--key", "public")
    record = json.loads((tmp_path / "images.jsonl").read_text())
    assert record["file"] == str(tmp_path / "marked.png")
    assert (tmp_path / "images.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_ruinous_strength_of_a_latent_codec_is_said(tmp_path):
    from conftest import _vae, tiny_codec

    codec = tiny_codec().save_pretrained(tmp_path / "codec")
    _vae().save_pretrained(codec / "vae")
    pixels = np.random.default_rng(0).integers(96, 160, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    shared = ("--codec", codec, "--key", "public", "--json")
    plain = run("embed", tmp_path / "a.png", "--out", tmp_path / "plain.png", "--strength", 0, *shared)
    assert json.loads(plain.stdout)["notes"] == ["a strength of 0 writes no mark: the picture is not marked"]
    marked = run("embed", tmp_path / "a.png", "--out", tmp_path / "b.png", "--strength", 1000, *shared)
    record = json.loads(marked.stdout)
    assert record["psnr"] < 30
    assert any("is seen by anybody" in note for note in record["notes"])
    assert 0 <= record["bits_read"] <= record["bits"] == 64


def test_a_hub_that_gives_no_answer_is_given_up_at_once(tmp_path):
    """No retries, which take a minute."""
    with socket.socket() as hub:
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        hub.settimeout(0.2)
        environment = {**ENVIRONMENT, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        environment |= {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        program = "from diffmark.latent.vae import load_vae; load_vae('nosuch/there')"
        command = [sys.executable, "-c", program]
        asked, said = 0, tmp_path / "said"
        with said.open("w") as file, subprocess.Popen(command, env=environment, stderr=file) as process:
            while process.poll() is None:
                try:
                    connection, _ = hub.accept()
                except TimeoutError:
                    continue
                connection.close()
                asked += 1
    assert "is no folder, and the hub gave no pipeline with a vae of that id" in said.read_text()
    assert asked <= 2


def test_loading_the_embedded_model_prints_nothing(capfd):
    from diffmark.vista import load_pipeline

    load_pipeline("vista-lcm")
    assert "Expected types" not in capfd.readouterr().err


def test_names_that_load_late_are_listed_and_a_detection_is_shown_in_a_line(pictures):
    program = "import sys, diffmark; print(*dir(diffmark)); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT)
    names, torch = done.stdout.splitlines()
    assert {"Detector", "PixelCodec", "detect", "embed", "watermark"} <= set(names.split())
    assert torch == "False"
    shown = repr(open_detector("pixel", key="public", search=False).detect(pictures / "0.png"))
    assert len(shown) < 200, shown


def test_several_images_do_not_go_into_one_file(pictures, tmp_path):
    done = run("embed", pictures / "0.png", pictures / "1.png", "--out", tmp_path / "x.png", code=1)
    assert "2 images go into a folder, and" in str(done.exception)
    assert not (tmp_path / "x.png").exists()


def test_a_service_without_tokens_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.setattr("diffmark.server.launch.run", lambda options: None)
    where = ("--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root")
    assert "diffmark token create" in run("serve", *where).stderr
    run("token", "create", "ann", *where)
    assert "diffmark token create" not in run("serve", *where).stderr


def test_untouched_pictures_are_not_said_to_be_pasted_together():
    words = (Path(server.__file__).parent / "static" / "words.js").read_text()
    accused = float(re.search(r"const MISSING = ([\d.]+);", words)[1])
    detector = open_detector("pixel", key="public")
    for number in range(4):
        marked = detector.codec.embed(scene(number, (384, 320)), from_hex(SECRET, 64)).image
        buffer = io.BytesIO()
        marked.save(buffer, "JPEG", quality=85)
        found = detector.detect(buffer.getvalue(), SECRET)
        assert detector.evidence_map(buffer.getvalue(), found).missing < accused, number
