"""`diffmark embed FOLDER`: on all cores, in order, past bad files, and again after a run that was cut off."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diffmark
from diffmark import cli
from diffmark.parallel import in_order


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "photos"
    source.mkdir()
    for index in range(5):
        noise = np.random.default_rng(index).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(noise).resize((128, 128)).save(source / f"{index}.png")
    (source / "2.png").write_bytes(b"no picture")
    return source


def embed(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["diffmark", "embed", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr().out


def test_a_folder_is_marked_past_a_bad_file_and_a_second_run_goes_on(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "marked"
    code, text = embed(monkeypatch, capsys, folder, "--out", out, "--json", "--jobs", 3)
    lines = [json.loads(line) for line in text.splitlines()]
    assert code == 2
    assert [Path(line["source"]).name for line in lines] == [f"{n}.png" for n in range(5)]  # in order
    assert "not an image" in lines[2]["error"]
    records = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
    assert {Path(record["file"]).name for record in records} == {"0.png", "1.png", "3.png", "4.png"}
    for record in records:
        assert diffmark.detect(record["file"], record["secret"], fpr=1e-6, search=False).marked
    assert len({record["secret"] for record in records}) == 4
    assert not list(out.glob("*.part"))

    (out / "3.png").unlink()  # as if the run had been cut off there
    before = (out / "0.png").read_bytes()
    code, text = embed(monkeypatch, capsys, folder, "--out", out, "--json")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line.get("skipped") for line in lines] == ["there already"] * 2 + [None] * 2 + ["there already"]
    assert (out / "3.png").exists()
    assert (out / "0.png").read_bytes() == before


def test_a_secret_is_on_disk_before_its_picture(folder, tmp_path, monkeypatch, capsys):
    """A run that is killed at any moment leaves no marked picture whose secret nobody knows."""
    out, known = tmp_path / "marked", []
    replace = os.replace

    def listen(source, target):
        lines = [json.loads(line) for line in (out / "images.jsonl").read_text().splitlines()]
        known.append(str(target) in {line["file"] for line in lines})
        assert not Path(target).exists()
        replace(source, target)

    monkeypatch.setattr("diffmark.cli.markers.os.replace", listen)
    embed(monkeypatch, capsys, folder, "--out", out, "--json", "--jobs", 2)
    assert known == [True] * 4


def test_jobs_run_beside_each_other_and_come_back_in_order():
    """Both must be at work at the same time to get past the barrier."""
    together = threading.Barrier(2, timeout=30)

    def work(job):
        together.wait()
        if job == 3:
            raise ValueError("bad")
        return -job

    found = list(in_order(work, range(4), 2))
    assert [job for job, _ in found] == [0, 1, 2, 3]
    assert [result for _, result in found[:3]] == [0, -1, -2]
    assert isinstance(found[3][1], ValueError)
