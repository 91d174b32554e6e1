from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import _build, tiny_codec
from PIL import Image
from processes import ENVIRONMENT
from typer.testing import CliRunner

from diffmark import cli
from diffmark.bulk import sources
from diffmark.bulk.results import Results
from diffmark.bulk.run import detect_all
from diffmark.bulk.sources import find, read
from diffmark.bulk.worker import Settings, Worker, digests
from diffmark.registry import Registry
from diffmark.registry.answers import RATE

PROGRAM = Path(__file__).parent / "programs" / "bulk.py"
CONFIG = {"codec": "x", "vae": None, "fpr": 1e-3, "registry": None, "key_ids": []}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A tiny codec and autoencoder on disk, as workers of other processes need them."""
    folder = tmp_path_factory.mktemp("codec")
    tiny_codec().save_pretrained(folder / "codec")
    _build("sd").pipe.vae.save_pretrained(folder / "vae")
    return Settings(str(folder / "codec"), str(folder / "vae"), batch_size=4)


def png(seed):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Ten images, one of them in a folder of its own, a broken one, and a text that is none."""
    place = tmp_path / "images"
    (place / "deep").mkdir(parents=True)
    for seed in range(9):
        (place / f"{seed}.png").write_bytes(png(seed))
    (place / "deep" / "9.PNG").write_bytes(png(9))
    (place / "broken.jpg").write_bytes(png(1)[:100])
    (place / "notes.txt").write_text("not an image")
    return place


def run(place, out, settings, **options):
    shards, _ = find(str(place))
    return sum(detect_all(shards, str(out), settings, **options), Counter())


def table(out):
    return pq.read_table(out).to_pylist()


def test_a_folder_becomes_a_table(folder, tmp_path, settings):
    counts = run(folder, tmp_path / "out", settings)
    assert counts == {"undecided": 10, "error": 1}
    rows = {Path(row["source"]).name: row for row in table(tmp_path / "out")}
    assert set(rows) == {*(f"{seed}.png" for seed in range(9)), "9.PNG", "broken.jpg"}
    worker = Worker(settings, digests([]))
    expected = worker.detector.detect(folder / "3.png")
    row = rows["3.png"]
    assert (row["bits"], row["verdict"], row["error"]) == (expected.secret, "undecided", None)
    assert row["sha256"] == hashlib.sha256(png(3)).hexdigest()
    assert np.allclose(row["margins"], expected.margins, atol=1e-4)
    assert "truncated" in rows["broken.jpg"]["error"]
    assert rows["broken.jpg"]["verdict"] is None
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o600}


def test_again_only_what_is_new_or_changed(folder, tmp_path, settings):
    run(folder, tmp_path / "out", settings)
    assert run(folder, tmp_path / "out", settings) == {}
    (folder / "new.png").write_bytes(png(50))
    (folder / "0.png").write_bytes(png(51))
    assert run(folder, tmp_path / "out", settings) == {"undecided": 2}
    sources_ = Counter(Path(row["source"]).name for row in table(tmp_path / "out"))
    assert sources_["0.png"] == 2  # the old content and the new
    assert set(sources_.values()) == {1, 2}


def test_other_settings_need_another_folder(folder, tmp_path, settings):
    run(folder, tmp_path / "out", settings)
    with pytest.raises(ValueError, match="another fpr"):
        run(folder, tmp_path / "out", Settings(settings.codec, settings.vae, fpr=0.1))
    with pytest.raises(FileExistsError, match="holds no bulk run"):
        run(folder, folder, settings)
    with pytest.raises(FileExistsError, match="is a file"):
        run(folder, folder / "0.png", settings)


def test_candidates_come_from_the_registry(folder, tmp_path, settings):
    key = int(Worker(settings, digests([])).detector.detect(folder / "3.png").secret, 16)
    with Registry.open("sqlite://", actor="ann") as registry:
        registry.import_keys(np.array([key, key ^ (2**64 - 1)], np.uint64), ["user-42", "user-43"])
        run(folder, tmp_path / "out", settings, registry=registry, reason="case 7", top=2)
        assert ("ann", "identify", "case 7") in {(e.actor, e.action, e.reason) for e in registry.log(100)}
    rows = {Path(row["source"]).name: row for row in table(tmp_path / "out")}
    row = rows["3.png"]
    assert row["principal"] == "user-42"
    assert row["candidates"][0]["distance"] == 0
    assert [candidate["principal"] for candidate in row["candidates"]] == ["user-42", "user-43"]
    assert rows["broken.jpg"]["candidates"] is None


def items(place, column=None):
    shards, total = find(str(place), column)
    found = [item for shard in shards for item in read(shard)]
    return found, total


def test_globs_and_single_files(folder):
    found, total = items(folder / "[0-3].png")
    assert (len(found), total) == (4, 4)
    assert found[2].data == png(2)
    assert [item.data for item in items(folder / "5.png")[0]] == [png(5)]
    with pytest.raises(FileNotFoundError, match="nothing.png: no such file"):
        find(str(folder / "nothing.png"))
    with pytest.raises(FileNotFoundError, match="holds no images"):
        find(str(folder / "*.xyz"))


def test_the_rows_of_a_run_are_not_its_input(folder, settings):
    for expected in ({"undecided": 10, "error": 1}, {}):
        shards, _ = find(str(folder), out=str(folder / "out"))
        assert sum(detect_all(shards, str(folder / "out"), settings), Counter()) == expected


def make_tar(path, count=5):
    with tarfile.open(path, "w") as tar:
        for seed in range(count):
            for suffix, data in ((".png", png(seed)), (".txt", b"a prompt")):
                info = tarfile.TarInfo(f"{seed:03d}{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def test_webdataset_tars(tmp_path):
    path = make_tar(tmp_path / "shard-0.tar")
    found, total = items(path)
    assert ([item.data for item in found], total) == ([png(seed) for seed in range(5)], None)
    assert found[1].source == f"{path}::001.png"
    (tmp_path / "cut.tar").write_bytes(path.read_bytes()[:9000])
    found, _ = items(tmp_path / "cut.tar")
    assert "the rest of it was not read" in found[-1].error
    assert [item.data for item in found[:-1]] == [png(seed) for seed in range(len(found) - 1)]


def test_parquet_of_bytes(tmp_path):
    contents = [png(seed) for seed in range(20)]
    plain = pa.table({"id": list(range(21)), "image": pa.array([*contents, None], pa.binary())})
    pq.write_table(plain, tmp_path / "plain.parquet", row_group_size=8)
    found, total = items(tmp_path / "plain.parquet")
    assert (total, [item.data for item in found]) == (21, [*contents, None])
    assert [item.source for item in found] == [f"{tmp_path / 'plain.parquet'}#{row}" for row in range(21)]
    assert found[20].error == "the cell is empty"
    structs = pa.table({"image": [{"bytes": data, "path": "a.png"} for data in contents[:3]]})
    pq.write_table(structs, tmp_path / "structs.parquet")
    assert [item.data for item in items(tmp_path / "structs.parquet")[0]] == contents[:3]
    pq.write_table(pa.table({"number": [1]}), tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match="which of number holds bytes or URLs"):
        find(str(tmp_path / "wrong.parquet"))
    with pytest.raises(ValueError, match="has no column 'x'"):
        find(str(tmp_path / "wrong.parquet"), "x")
    (tmp_path / "junk.parquet").write_bytes(b"junk")
    with pytest.raises(ValueError, match="not a Parquet file"):
        find(str(tmp_path / "junk.parquet"))


@pytest.fixture
def web(folder):
    """Address of a server of the folder."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_parquet_of_urls(tmp_path, web, settings):
    urls = [f"{web}/{seed}.png" for seed in range(3)] + [f"{web}/missing.png", f"{web}/notes.txt"]
    pq.write_table(pa.table({"url": urls}), tmp_path / "urls.parquet")
    counts = run(tmp_path / "urls.parquet", tmp_path / "out", settings)
    assert counts == {"undecided": 3, "error": 2}
    rows = {row["url"]: row for row in table(tmp_path / "out")}
    assert rows[urls[1]]["sha256"] == hashlib.sha256(png(1)).hexdigest()
    assert "cannot be fetched" in rows[urls[3]]["error"]
    assert "not an image" in rows[urls[4]]["error"]
    # What could not be fetched is tried again, the rest is not.
    assert run(tmp_path / "urls.parquet", tmp_path / "out", settings) == {"error": 1}


def test_what_is_too_large_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(sources, "MAX_IMAGE_BYTES", 200)
    assert {item.error for item in items(folder / "[0-3].png")[0]} == {"larger than 200 bytes"}
    tar = items(make_tar(folder / "a.tar"))[0]
    assert ({item.error for item in tar}, tar[0].data) == ({"larger than 200 bytes"}, None)


def test_object_stores_through_fsspec(settings):
    """fsspec's file system in memory stands for S3 and its kind: no folders, no renames."""
    memory = fsspec.filesystem("memory")
    for seed in range(6):
        memory.pipe_file(f"/bucket/in/{seed}.png", png(seed))
    assert run("memory://bucket/in", "memory://bucket/out", settings) == {"undecided": 6}
    assert run("memory://bucket/in/*.png", "memory://bucket/out", settings) == {}
    files = Results("memory://bucket/out", {**CONFIG, "codec": settings.codec, "vae": settings.vae}).files()
    rows = [row for name in files for row in pq.read_table(memory.open(name)).to_pylist()]
    assert {row["source"] for row in rows} == {f"memory:///bucket/in/{seed}.png" for seed in range(6)}
    memory.rm("/bucket", recursive=True)


@pytest.fixture
def s3(monkeypatch):
    """An S3 server of our own, with an empty bucket: needs moto[server] and s3fs, which pip takes minutes for."""
    for name in ("moto", "s3fs"):
        pytest.importorskip(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    names = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**names, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rsplit(":", 1)[1]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        system = fsspec.filesystem("s3", skip_instance_cache=True)
        for attempt in range(120):
            try:
                system.mkdir("bucket")
                break
            except OSError:
                assert server.poll() is None, attempt
                time.sleep(0.5)
        yield system
    finally:
        server.kill()
        server.wait()


def test_s3_from_bucket_to_bucket(s3, settings):
    for seed in range(4):
        s3.pipe_file(f"bucket/in/{seed}.png", png(seed))
    s3.pipe_file("bucket/in/broken.png", b"junk")
    assert run("s3://bucket/in", "s3://bucket/out", settings) == {"undecided": 4, "error": 1}
    s3.pipe_file("bucket/in/new.png", png(9))
    assert run("s3://bucket/in", "s3://bucket/out", settings) == {"undecided": 1}
    s3.invalidate_cache()
    rows = pq.read_table("bucket/out", filesystem=s3).to_pylist()
    assert sorted(row["source"] for row in rows) == sorted(
        f"s3://bucket/in/{name}.png" for name in (0, 1, 2, 3, "broken", "new")
    )


def test_a_partial_file_of_a_killed_run_goes_away(tmp_path):
    Results(str(tmp_path / "out"), CONFIG)
    (tmp_path / "out" / "_part-1.parquet.partial").write_bytes(b"half")
    assert Results(str(tmp_path / "out"), CONFIG).files() == []
    assert sorted(os.listdir(tmp_path / "out")) == ["_bulk.json"]


def many(tmp_path, count):
    place = tmp_path / "many"
    place.mkdir()
    for seed in range(count):
        (place / f"{seed:03d}.png").write_bytes(png(seed))
    (place / "broken.png").write_bytes(b"junk")
    return place


def start(place, out, settings, workers):
    arguments = [sys.executable, PROGRAM, place, out, settings.codec, settings.vae, workers]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, env=environment, text=True)


def killed_and_resumed(tmp_path, settings, workers, count, kills):
    place, out = many(tmp_path, count), tmp_path / "out"
    for batches in kills:
        victim = start(place, out, settings, workers)
        for _ in range(batches):
            assert victim.stdout.readline()
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert victim.returncode == -signal.SIGKILL
        rows = len(table(out))
        assert 0 < rows < count + 1
    finished = start(place, out, settings, workers)
    printed, _ = finished.communicate(timeout=280)
    assert finished.returncode == 0
    assert sum(map(int, printed.split())) == count + 1 - rows  # what was there was not done again
    sources_ = Counter(row["source"] for row in table(out))
    assert set(sources_) == {str(path) for path in place.iterdir()}
    assert set(sources_.values()) == {1}


def test_kill_9_and_resume_loses_nothing_and_does_nothing_twice(tmp_path, settings):
    killed_and_resumed(tmp_path, settings, workers=0, count=60, kills=[3])


@pytest.mark.slow
def test_kill_9_and_resume_on_ray(tmp_path, settings):
    killed_and_resumed(tmp_path, settings, workers=2, count=200, kills=[1, 2])


@pytest.mark.slow
def test_ray_gives_the_rows_of_one_process(tmp_path, settings):
    place = many(tmp_path, 30)
    make_tar(place / "a.tar", 12)
    pq.write_table(pa.table({"image": [png(100 + seed) for seed in range(10)]}), place / "b.parquet")
    run(place, tmp_path / "here", settings)
    finished = start(place, tmp_path / "ray", settings, workers=2)
    finished.communicate(timeout=280)
    assert finished.returncode == 0
    here, there = (
        {row["source"]: row for row in table(tmp_path / name)} for name in ("here", "ray")
    )  # fmt: skip
    assert len(here) == 53
    assert {source: (row["sha256"], row["bits"], row["error"]) for source, row in here.items()} == {
        source: (row["sha256"], row["bits"], row["error"]) for source, row in there.items()
    }


def test_the_command(folder, tmp_path, settings, capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", "bulk", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    url = f"sqlite:///{tmp_path / 'registry.db'}"
    with Registry.open(url, actor="root") as registry:
        registry.issue("user-1")
    common = [folder, "--out", tmp_path / "out", "--codec", settings.codec, "--vae", settings.vae]
    code, out, err = run(*common, "--registry", url, "--actor", "root", "--json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["rows"], summary["undecided"], summary["error"]) == (11, 10, 1)
    assert {len(row["candidates"] or []) for row in table(tmp_path / "out")} == {0, 1}
    code, _, err = run(*common)
    assert (code, "another registry" in err) == (2, True)
    code, _, err = run(tmp_path / "nothing", "--out", tmp_path / "x")
    assert (code, "no such file" in err) == (2, True)


def test_a_run_states_what_chance_gives_and_can_be_held_to_a_rate_as_a_whole(folder, tmp_path, settings):
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    with Registry.open(url, actor="root") as registry:
        registry.issue("user-1")
    common = ["--codec", settings.codec, "--vae", settings.vae, "--json"]

    def bulk(*arguments):
        done = CliRunner().invoke(cli.app, ["bulk", *map(str, [*arguments, *common])])
        return done, json.loads(done.stdout) if done.exit_code == 0 else None

    _, each = bulk(folder, "--out", tmp_path / "each", "--fpr", 0.01)
    assert (each["fpr"], each["expected_false_verdicts"]) == (0.01, 0.1)  # of the 10 that could be read
    _, whole = bulk(
        folder, "--out", tmp_path / "whole", "--run-fpr", 1e-6, "--registry", url, "--actor", "root"
    )
    assert whole["fpr"] == pytest.approx(1e-6 / 11, rel=1e-5)  # none of the 11 files
    assert whole["expected_false_verdicts"] == pytest.approx(10 * whole["fpr"], rel=1e-2)
    assert whole["expected_false_names"] == pytest.approx(
        10 * whole["fpr"], rel=1e-2
    )  # names are held to it too
    _, named = bulk(folder, "--out", tmp_path / "named", "--registry", url, "--actor", "root")
    assert named["expected_false_names"] == pytest.approx(10 * RATE)
    tar = make_tar(tmp_path / "shard-0.tar")
    refused, _ = bulk(tar, "--out", tmp_path / "tar", "--run-fpr", 0.01)
    assert "how many images" in str(refused.exception)
