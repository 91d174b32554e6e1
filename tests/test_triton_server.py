"""The Triton step in a real Triton server: that of the wheel nvidia-pytriton, on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from pathlib import Path

import pytest
from processes import INSTALLED

ROOT = Path(__file__).parents[1]
WAIT = 120  # seconds until the server is ready


def repository(folder: Path, site: Path) -> Path:
    """The step as it is; the server's own interpreter does not know the environment that DiffMark is in."""
    models = folder / "models"
    shutil.copytree(ROOT / "integrations" / "triton", models)
    step = models / "diffmark_mark" / "1" / "model.py"
    step.write_text(f"import sys\n\nsys.path.insert(0, {str(site)!r})\n{step.read_text()}")
    return models


@pytest.mark.slow
def test_a_real_server_marks(tmp_path: Path) -> None:
    """Needs a package index. The server's Python backend is built for numpy 1."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "--quiet", "numpy<2", "nvidia-pytriton==0.7.0", str(ROOT)]
    subprocess.run(install, check=True, timeout=900, env=INSTALLED)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    server = site / "pytriton" / "tritonserver"
    backend = tmp_path / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program, stub = server / "bin" / "tritonserver", server / "python_backend_stubs" / version
    shutil.copy2(stub / "triton_python_backend_stub", backend)
    for executable in (program, backend / "triton_python_backend_stub"):  # a wheel keeps no modes
        executable.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [str(program), f"--model-repository={repository(tmp_path, site)}"]
    command += [f"--backend-directory={backend.parent}", f"--http-port={address.split(':')[1]}"]
    command += ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
    libraries = {"LD_LIBRARY_PATH": str(site / "nvidia_pytriton.libs"), "XDG_DATA_HOME": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **libraries})
    try:
        wait_until_ready(process, address, tmp_path / "log")
        client = [python, str(ROOT / "tests" / "programs" / "triton_client.py"), address]
        environment = {**INSTALLED, "XDG_DATA_HOME": str(tmp_path)}
        done = subprocess.run(client, capture_output=True, text=True, env=environment, timeout=300)
    finally:
        process.terminate()
        process.wait(60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["shape"] == [2, 256, 256, 3]
    assert found["verdicts"] == ["marked", "marked"]
    assert min(found["bits"]) >= 60
    assert "3 secrets for 2 images" in found["refused"]


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text())
