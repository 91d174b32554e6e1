"""Several processes, and processes that are killed: the runs that only whole programs can show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from diffmark.latent.codec import Codec

PROGRAM = Path(__file__).parent / "programs" / "tiny_training.py"


def launch(folder, *arguments, processes=1):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    head = [sys.executable]
    if processes > 1:
        head += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return subprocess.Popen([*head, str(PROGRAM), str(folder), *map(str, arguments)], env=environment)


def finish(process):
    assert process.wait(timeout=600) == 0


def state(folder):
    return Codec.from_pretrained(folder / "codec").state_dict()


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path):
    """Two processes of two images against one that accumulates two parts of two: the same global batch of four."""
    finish(launch(tmp_path / "one", "--accumulation", 2))
    finish(launch(tmp_path / "two", processes=2))
    assert len(list((tmp_path / "two").glob("checkpoints/step-00000006/process-*.pt"))) == 2
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    for name, value in one.items():
        if "running" in name or "num_batches" in name:
            continue  # statistics of batch norm see half as many batches each, and are averaged
        # AdamW divides by the gradient's size, so rounding moves what has next to no gradient: hence the mean.
        assert (value - two[name]).abs().mean() < 2e-6, name
    logs = [
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")
    ]
    assert logs[0]["loss"] == pytest.approx(logs[1]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.7])
def test_kill_9_at_any_moment_and_resume_equals_uninterrupted(tmp_path, seconds):
    finish(launch(tmp_path / "whole", "--steps", 30))
    victim = launch(tmp_path / "killed", "--steps", 30)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "killed").glob("checkpoints/step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(seconds)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    finish(launch(tmp_path / "killed", "--steps", 30))
    whole, killed = state(tmp_path / "whole"), state(tmp_path / "killed")
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    assert json.loads(logs[0].splitlines()[-1])["step"] == 30


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_checkpoint(tmp_path):
    """The program kills itself while it writes its second checkpoint."""
    finish(launch(tmp_path / "whole", "--steps", 8))
    victim = launch(tmp_path / "killed", "--steps", 8, "--die-while-saving", 4)
    assert victim.wait(timeout=300) == -signal.SIGKILL
    assert list((tmp_path / "killed" / "checkpoints").glob(".partial-*"))
    finish(launch(tmp_path / "killed", "--steps", 8))
    whole, killed = state(tmp_path / "whole"), state(tmp_path / "killed")
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
