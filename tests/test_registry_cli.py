"""The commands on a registry, called as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import _vae, tiny_codec
from processes import ENVIRONMENT
from typer.testing import CliRunner

from diffmark.cli import app, keys, main
from diffmark.registry import Registry
from diffmark.registry.identities import VARIABLE

runner = CliRunner()


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIFFMARK_REGISTRY", f"sqlite:///{tmp_path / 'registry.db'}")
    monkeypatch.setenv("DIFFMARK_ACTOR", "ann")


def run(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def rows(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """What a command prints with --json: a line a row."""
    return [json.loads(line) for line in run(*arguments, "--json", code=code).splitlines()]


def issued(*arguments: str) -> list[str]:
    return [key["key"] for key in rows("keys", "issue", *arguments)]


def test_issue_and_identify_in_two_lines() -> None:
    line = run("keys", "issue", "user-42")
    principal, key = line.split()
    assert principal == "user-42"
    answer = run("identify", "--bits", key)
    assert answer.startswith(f"{key}: user-42, family-wise error 5.4e-20")
    assert "1 key, hard ranking" in answer


def test_no_match_is_exit_code_1() -> None:
    issued("a", "b")
    assert "no significant match" in run("identify", "--bits", "0123456789abcdef", code=1)
    (found,) = rows("identify", "--bits", "0123456789abcdef", code=1)
    assert found["verdict"]["principal"] is None
    assert "best of a closed set" in run("identify", "--bits", "0123456789abcdef", "--closed")


def test_identify_from_files_of_logits(tmp_path: Path) -> None:
    hexes = issued("a", "b", "c")
    signs = np.array(
        [[1.0 if int(key, 16) >> (63 - place) & 1 else -1.0 for place in range(64)] for key in hexes]
    )
    logits = np.stack([-signs, signs], axis=-1)
    np.save(tmp_path / "one.npy", logits[0])
    np.savez(tmp_path / "all.npz", logits=logits)
    np.savez(tmp_path / "wrong.npz", other=logits)
    output = run("identify", str(tmp_path / "one.npy"), str(tmp_path / "all.npz"), "--top", "1")
    verdicts = [line for line in output.splitlines() if ", family-wise error" in line]
    assert [line.split(": ")[1].split(",")[0] for line in verdicts] == ["a", "a", "b", "c"]
    assert "all.npz[2]: c" in output
    np.savez(tmp_path / "twice.npz", logits=logits[[1, 1]])
    chance = runner.invoke(app, ["identify", str(tmp_path / "all.npz")], catch_exceptions=False).stderr
    assert "answers at a family-wise error of 1e-06 each" in chance
    assert "e-06 false names are expected by chance" in chance
    assert "2 images together: b" in run("identify", str(tmp_path / "twice.npz"), "--together")
    with pytest.raises(ValueError, match="needs an array named logits, found other"):
        runner.invoke(app, ["identify", str(tmp_path / "wrong.npz")], catch_exceptions=False)


def test_identify_reads_images(tmp_path: Path) -> None:
    """The whole way from a picture: an untrained codec reads something, and that is issued as somebody's key."""
    from PIL import Image

    from diffmark.detection.latent import Detector

    codec = tiny_codec(family="sd").save_pretrained(tmp_path / "codec")
    torch.manual_seed(0)
    _vae(scaling_factor=0.18215).eval().save_pretrained(codec / "vae")
    (tmp_path / "pictures").mkdir()
    for number, name in enumerate(("x.png", "y.png")):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / name)
    read = Detector.from_pretrained(codec).detect(tmp_path / "pictures" / "x.png")
    issued("somebody else")
    (tmp_path / "keys.csv").write_text(f"key,principal\n{read.secret},user-7\n")
    run("keys", "import", str(tmp_path / "keys.csv"))
    picture = str(tmp_path / "pictures" / "x.png")
    assert f"{picture}: user-7, family-wise error" in run("identify", picture, "--codec", str(codec))
    (tmp_path / "pictures" / "z.png").write_bytes(b"broken")
    found = runner.invoke(app, ["identify", str(tmp_path / "pictures"), "--codec", str(codec), "--json"])
    assert found.exit_code == 2
    assert "z.png" in found.stderr
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert [Path(answer["source"]).name for answer in answers] == ["x.png", "y.png"]


def test_nothing_to_identify_is_an_error() -> None:
    with pytest.raises(ValueError, match="give an image"):
        runner.invoke(app, ["identify"], catch_exceptions=False)


def test_who_reads_makes_no_registry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mistyped.db'}"
    for words in (["identify", "--bits", "0123456789abcdef"], ["keys", "list"], ["registry", "verify"]):
        with pytest.raises(FileNotFoundError, match="mistyped.db: there is no registry"):
            runner.invoke(app, [*words, "--registry", url], catch_exceptions=False)
    assert not list(tmp_path.glob("mistyped*"))


def test_keys_from_a_file_with_context_and_expiry(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("one\ntwo\n\n")
    issued("--from", str(tmp_path / "names"), "--context", "model=sd", "--expires", "30d")
    listed = rows("keys", "list")
    assert [key["principal"] for key in listed] == ["one", "two"]
    assert json.loads(listed[0]["context"]) == {"model": "sd"}
    assert listed[0]["expires"] - listed[0]["created"] == pytest.approx(30 * 86400e6, abs=60e6)
    assert "one" in run("keys", "list", "--principal", "one")
    for wrong in (["keys", "issue"], ["keys", "issue", "a", "--context", "model"]):
        assert isinstance(runner.invoke(app, wrong).exception, ValueError)


def test_revoke_expire_and_stats() -> None:
    hexes = issued("a", "b", "b")
    assert run("keys", "revoke", "--key", hexes[0]) == "revoked 1\n"
    assert run("keys", "expire", "2020-01-01", "--principal", "b") == "set for 2\n"
    stats = json.loads(run("keys", "stats", "--json"))
    assert (stats["keys"], stats["revoked"], stats["expired"], stats["live"]) == (3, 1, 2, 0)
    assert "revoked" in run("keys", "stats")
    assert "unknown or revoked already" in run("keys", "revoke", "--key", hexes[0], code=2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_export_and_import(tmp_path: Path, kind: str) -> None:
    issued("a", "b")
    before = run("keys", "list")
    assert run("keys", "export", str(tmp_path / f"keys.{kind}")) == "exported 2\n"
    other = ("--registry", f"sqlite:///{tmp_path / 'other.db'}")
    assert run("keys", "import", str(tmp_path / f"keys.{kind}"), *other) == "imported 2\n"
    assert run("keys", "list", *other) == before


def test_verify_log_backup_and_restore(tmp_path: Path) -> None:
    run("registry", "init")
    issued("a")
    output = run("registry", "verify")
    assert "the log is whole" in output
    head = output.split("head ")[1].split()[0]
    assert "the log was tampered with" in run("registry", "verify", "--anchor", "3:abc", code=1)
    assert json.loads(run("registry", "verify", "--anchor", head, "--json"))["ok"]
    assert [row["action"] for row in rows("registry", "log")] == [
        "create",
        "set operator key",
        "issue",
    ]
    assert run("registry", "backup", str(tmp_path / "backup")).endswith("1 keys\n")
    other = ("--registry", f"sqlite:///{tmp_path / 'other.db'}")
    assert run("registry", "restore", str(tmp_path / "backup"), *other) == "restored 1 keys\n"
    assert "the log is whole" in run("registry", "verify", *other)


def test_governance_by_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, run("registry", "new-key").strip())
    issued("user-1")
    run("registry", "identity", "user-1", "Una Example")
    assert run("registry", "resolve", "user-1", "--reason", "case 1") == "Una Example\n"
    assert "stated reason" in run("registry", "resolve", "user-1", code=2)
    run("registry", "grant", "bob", "auditor")
    run("registry", "require-approval", "auditor")
    assert run("registry", "request", "user-1", "--reason", "case 2") == "request 1\n"
    run("registry", "approve", "1", "--actor", "bob")
    assert run("registry", "resolve", "user-1", "--reason", "case 2") == "Una Example\n"
    assert "no longer holds" in run("registry", "grant", "bob", "auditor", "--withdraw")
    assert run("registry", "rotate") == "sealed 0 anew\n"
    assert "may not resolve" in run(
        "registry", "resolve", "user-1", "--reason", "x", "--actor", "eve", code=2
    )


def test_times() -> None:
    assert keys.moment(None) is None
    assert keys.moment("2027-01-31") == 1801353600000000
    assert keys.moment("2027-01-31T01:00+01:00") == 1801353600000000
    with pytest.raises(ValueError, match="got 'soon'"):
        keys.moment("soon")


def test_the_default_registry_is_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIFFMARK_REGISTRY")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    run("registry", "init")
    assert (tmp_path / "data" / "diffmark" / "registry.db").exists()


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["diffmark", "keys", "stats", "--registry", "mysql://x"])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv("DIFFMARK_DEBUG", "1")
    with pytest.raises(Exception, match="names 'mysql'"):
        main()


def test_help_is_light() -> None:
    program = (
        "import sys; from diffmark.cli import app\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'numba', 'cryptography'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)


def test_the_registry_made_by_a_command_is_the_librarys() -> None:
    import os

    (key,) = issued("a")
    with Registry.open(os.environ["DIFFMARK_REGISTRY"], actor="ann") as registry:
        assert registry.identify_bits(key).verdict.principal == "a"
