"""Secrets and keys are in no log line, error message, traceback or metric; files that hold them are private."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import traceback

import numpy as np
import pytest
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient
from PIL import Image
from sqlalchemy import text
from sqlalchemy.exc import StatementError
from typer.testing import CliRunner

from diffmark.cli import app
from diffmark.detection.latent import Detector
from diffmark.keys.ring import find_ring, new_ring, ring_path
from diffmark.payload.scheme import PayloadScheme
from diffmark.private import given
from diffmark.registry import Registry
from diffmark.registry.backup import backup
from diffmark.registry.errors import RegistryError
from diffmark.registry.exchange import export_keys, import_file
from diffmark.secret import as_secrets
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

SECRET = "5ec2e7a9b3d81f40"


def png(side=64):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)).save(
        buffer, "PNG"
    )
    return buffer.getvalue()


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def registry(tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        registry.issue("user-1")
        yield registry


@pytest.fixture
def wide_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_of_a_registry_are_private(wide_umask, tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        registry.issue("user-1")
        registry.identify_bits("0" * 16)
        (tmp_path / "old.csv").write_text("wide")
        for name in ("keys.csv", "old.csv", "keys.parquet"):
            export_keys(registry, tmp_path / name)
        backup(registry, tmp_path / "backup.db")
        found = {path.name: mode(path) for path in tmp_path.iterdir() if path.is_file()}
    assert {
        "registry.db",
        "registry.db-wal",
        "keys.csv",
        "old.csv",
        "keys.parquet",
        "backup.db",
    } <= found.keys()
    assert set(found.values()) == {0o600}, found


def test_a_registry_that_others_can_read_is_refused(registry, tmp_path):
    place = tmp_path / "registry.db"
    for wide in (0o644, 0o660, 0o606):
        place.chmod(wide)
        with pytest.raises(RegistryError, match="chmod 600"):
            Registry.open(f"sqlite:///{place}", actor="root")
    place.chmod(0o600)


def test_key_files_that_others_can_read_are_refused(tmp_path):
    file = tmp_path / "key"
    file.write_text("00" * 32)
    file.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        PayloadScheme.from_file(file)
    with pytest.raises(PermissionError, match="chmod 600"):
        given(f"@{file}", "secrets")
    file.chmod(0o600)
    assert given(f"@{file}", "secrets") == "00" * 32
    assert given(SECRET, "secrets") == SECRET


def test_the_service_logs_and_counts_no_secret(registry, caplog):
    limits = Limits(per_minute=1e9, burst=10**9)
    service = Service(Detector(tiny_codec(), _build("sd").pipe.vae), registry, limits)
    token = grant_token(registry, "ann", "auditor")[1]
    operator = grant_token(registry, "ops", "operator")[1]
    with caplog.at_level(logging.DEBUG), TestClient(create_app(service)) as client:
        logging.getLogger("diffmark.server").propagate = True
        for given_secret, data in ((SECRET, png()), (SECRET[:-1], png()), (SECRET, b"broken")):
            client.post(
                f"/v1/detect?secret={SECRET}",
                headers={"Authorization": f"Bearer {token}"},
                files={"images": (f"{SECRET}.png", data)},
                data={"secret": given_secret},
            )
        client.get("/v1/me", headers={"Authorization": f"Bearer {token}x"})
        client.post("/v1/keys", headers={"Authorization": f"Bearer {operator}"}, json={"principal": SECRET})
        metrics = client.get("/metrics").text
    issued = registry.list_keys()[-1].hex
    own = [
        record for record in caplog.records if not record.name.startswith("httpx")
    ]  # the client's, not ours
    assert own
    logged = "\n".join(record.getMessage() for record in own) + metrics
    for hidden in (SECRET, token, operator, issued):
        assert hidden not in logged


def test_commands_print_no_operator_key_even_with_a_traceback(tmp_path):
    new_ring(ring_path())
    digits = ring_path().read_text().split()[0]
    (tmp_path / "broken.png").write_bytes(b"broken")
    environment = os.environ | {"DIFFMARK_DEBUG": "1", "COLUMNS": "200"}
    for variable, value in (
        ("DIFFMARK_KEY", digits),
        ("DIFFMARK_KEY", digits + "zz"),
        ("DIFFMARK_KEY_FILE", ring_path()),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "diffmark", "detect", str(tmp_path / "broken.png"), "--codec", "pixel"],
            env=environment | {f"DIFFMARK_{variable}": str(value)},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert digits not in done.stdout + done.stderr
    assert digits not in repr(find_ring()) + str(find_ring()) + repr(find_ring().current)


@pytest.mark.parametrize("wrong", [SECRET[:-1], SECRET + "zz", SECRET[:-1] + "g", int(SECRET, 16) << 4, -7])
def test_a_wrong_secret_is_refused_without_showing_it(wrong):
    with pytest.raises(ValueError, match="secret") as caught:
        as_secrets(wrong, 64)
    assert SECRET[:12] not in str(caught.value)
    assert str(wrong) not in str(caught.value)


def test_errors_of_the_registry_show_no_key_and_no_password(registry, tmp_path):
    file = tmp_path / "keys.csv"
    messages = []
    for row in (f"{SECRET}zz", SECRET[:-1] + "g"):
        file.write_text(f"key,principal\n{row},a\n")
        with pytest.raises(ValueError, match="row 1") as caught:
            import_file(registry, file)
        messages += traceback.format_exception(caught.value)
    with pytest.raises(RegistryError, match="unknown or revoked") as unknown:
        registry.revoke(key=SECRET)
    registry.import_keys(np.array([int(SECRET, 16)], np.uint64), ["a"])
    with pytest.raises((RegistryError, ValueError)) as twice:
        registry.import_keys(np.array([int(SECRET, 16)], np.uint64), ["b"])
    for url in ("oracle://u:hush-hush@host/x", "u:hush-hush@host"):
        with pytest.raises(RegistryError, match="URL") as place:
            Registry.open(url)
        messages += traceback.format_exception(place.value)
    messages += [*traceback.format_exception(unknown.value), *traceback.format_exception(twice.value)]
    with pytest.raises(StatementError) as sql, registry.store.engine.connect() as connection:
        connection.execute(text("INSERT INTO nothing VALUES (:key)"), {"key": SECRET})
    messages += [str(sql.value)]
    said = "\n".join(messages)
    for hidden in (SECRET, str(int(SECRET, 16)), "hush-hush"):
        assert hidden not in said


def test_no_command_shows_a_secret_in_a_traceback(tmp_path):
    (tmp_path / "picture.png").write_bytes(png(128))
    environment = os.environ | {"DIFFMARK_DEBUG": "1", "COLUMNS": "300"}
    for command in (
        ["detect", str(tmp_path / "picture.png"), "--codec", "pixel", "--secret", SECRET + "z"],
        ["embed", str(tmp_path / "picture.png"), "--out", str(tmp_path), "--secret", SECRET[:-1] + "g"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "diffmark", *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode != 0
        assert "Error" in done.stderr
        assert SECRET[:12] not in done.stdout + done.stderr


def test_a_secret_can_be_given_where_no_shell_keeps_it(tmp_path, monkeypatch):
    (tmp_path / "picture.png").write_bytes(png(128))
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "secret").chmod(0o600)
    place = tmp_path / "marked.png"
    arguments = ["embed", str(tmp_path / "picture.png"), "--key", "public", "--json"]
    first = CliRunner().invoke(app, [*arguments, "--out", str(place), "--secret", f"@{tmp_path / 'secret'}"])
    assert first.exit_code == 0, first.output
    monkeypatch.setenv("DIFFMARK_SECRET", SECRET)
    second = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "again.png")])
    assert second.exit_code == 0, second.output
    assert place.read_bytes() == (tmp_path / "again.png").read_bytes()
    found = CliRunner().invoke(
        app,
        ["detect", str(place), "--key", "public", "--codec", "pixel", "--secret", f"@{tmp_path / 'secret'}"],
    )
    assert SECRET in found.stdout


def test_a_decompression_bomb_is_refused_before_it_is_decoded():
    from diffmark.images import ImageError, read_image

    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 100_000
    with pytest.raises(ImageError, match="limit"):
        read_image(buffer.getvalue())


def test_no_other_site_can_use_or_frame_the_page(registry):
    service = Service(Detector(tiny_codec(), _build("sd").pipe.vae), registry)
    token = grant_token(registry, "ann", "auditor")[1]
    with TestClient(create_app(service)) as client:
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "set-cookie" not in page.headers  # nothing that a browser sends by itself
        client.cookies.set("Authorization", f"Bearer {token}")
        assert client.get("/v1/me").status_code == 401
        answer = client.get(
            "/v1/me", headers={"Authorization": f"Bearer {token}", "Origin": "https://evil.example"}
        )
        assert "access-control-allow-origin" not in answer.headers
        for path in ("/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/..%5capp.py", "/page//etc/passwd"):
            assert client.get(path).status_code == 404
