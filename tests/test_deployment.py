"""Dockerfile and compose.yaml: linted, and as safe as docs/operators.md says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def test_the_dockerfile_has_no_lint():
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_runs_unprivileged_on_cpu_torch():
    text = (ROOT / "Dockerfile").read_text()
    last = text.rsplit("FROM ", 1)[1]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .*\n.*/ready", last, re.MULTILINE)
    assert "https://download.pytorch.org/whl/cpu" in text
    extras = re.search(r"'\.\[(.*)\]'", text).group(1).split(",")
    known = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", known, re.MULTILINE) for extra in extras)
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert set(line.split()) <= kept
        assert all((ROOT / name).exists() for name in line.split())


def test_compose_is_closed_by_default(compose):
    service, database = compose["services"]["service"], compose["services"]["database"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert all("no-new-privileges:true" in part["security_opt"] for part in (service, database))
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "ports" not in database
    assert database["networks"] == ["inside"]
    assert compose["networks"]["inside"]["internal"] is True
    assert service["depends_on"]["database"]["condition"] == "service_healthy"
    assert database["healthcheck"]["test"]
    written = {mount.split(":")[0] for mount in service["volumes"] + database["volumes"]}
    assert written == set(compose["volumes"])


def test_no_password_is_in_the_files(compose):
    values = [part["environment"] for part in compose["services"].values()]
    passwords = [
        value for each in values for name, value in each.items() if "PASSWORD" in name or "://" in value
    ]
    assert passwords
    assert all("${POSTGRES_PASSWORD:?" in value for value in passwords)
