"""A run's folder: resolved config, versions, log, checkpoints.

config.json         every setting as it was used
environment.json    command, versions, git revision
log.jsonl           one line every few steps; tensorboard/ has the same
checkpoints/        step-00000200/ ..., the last few; written beside and renamed, so never half there
samples/            pictures at intervals
best/, codec/       the best codec so far, and the last one
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from diffmark.provenance import command_line, revision, versions


class Run:
    """Writes a run's folder from the main process; every process may read it."""

    def __init__(self, folder: str | Path, config: Any, accelerator: Accelerator, keep: int = 3) -> None:
        self.folder, self.accelerator, self.keep = Path(folder), accelerator, keep
        self.checkpoints = self.folder / "checkpoints"
        self._board: Any = None
        if accelerator.is_main_process:
            self._open(dataclasses.asdict(config))
        accelerator.wait_for_everyone()

    def _open(self, config: dict[str, Any]) -> None:
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        for leftover in self.checkpoints.glob(".partial-*"):  # of a run that was killed while it saved
            shutil.rmtree(leftover)
        file = self.folder / "config.json"
        config = json.loads(json.dumps(config))
        if file.is_file() and self.latest() is not None:
            _check_same(json.loads(file.read_text()), config, str(file))
        file.write_text(json.dumps(config, indent=2) + "\n")
        environment = self.folder / "environment.json"
        made_by = {"command": command_line(), "versions": versions(), "revision": revision()}
        environment.write_text(json.dumps(made_by, indent=2) + "\n")

    def start_log(self, step: int) -> None:
        """Drop lines from after `step`: a resumed run writes them again."""
        if not self.accelerator.is_main_process:
            return
        from torch.utils.tensorboard import SummaryWriter

        file = self.folder / "log.jsonl"
        if file.is_file():
            kept = [line for line in file.read_text().splitlines() if _is_until(line, step)]
            file.write_text("".join(f"{line}\n" for line in kept))
        self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        """A line of the means over all processes: JSON, and a point on each of TensorBoard's curves."""
        if self.accelerator.num_processes > 1:
            values = _means(gather_object([values]))
        if not self.accelerator.is_main_process:
            return
        line = {"step": step, **{name: round(float(value), 6) for name, value in values.items()}}
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    # --- checkpoints -----------------------------------------------------------------------------------------

    def save(self, step: int, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """Checkpoint at `step`: what all processes share, and what each has for its own."""
        final = self.checkpoints / f"step-{step:08d}"
        partial = self.checkpoints / f".partial-{final.name}"
        if self.accelerator.is_main_process:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            _write(partial / "shared.pt", {"step": step, **shared})
        self.accelerator.wait_for_everyone()
        _write(partial / f"process-{self.accelerator.process_index}.pt", own)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            for old in sorted(self.checkpoints.glob("step-*"))[: -self.keep]:
                shutil.rmtree(old)
        self.accelerator.wait_for_everyone()

    def latest(self) -> Path | None:
        """The newest checkpoint, if there is one."""
        return max(self.checkpoints.glob("step-*"), default=None)

    def load(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(shared, own) of the newest checkpoint."""
        folder = self.latest()
        if folder is None:
            return None
        file = folder / f"process-{self.accelerator.process_index}.pt"
        if not file.is_file():
            raise FileNotFoundError(
                f"{folder} has no {file.name}: it was written by fewer than "
                f"{self.accelerator.num_processes} processes; resume with as many"
            )
        return (
            torch.load(folder / "shared.pt", weights_only=True, map_location="cpu"),
            torch.load(file, weights_only=True, map_location="cpu"),
        )


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    """Mean of each name over the rows that have it: processes may have drawn different attacks."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _write(path: Path, state: dict[str, Any]) -> None:
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _is_until(line: str, step: int) -> bool:
    try:
        return int(json.loads(line)["step"]) <= step
    except (json.JSONDecodeError, KeyError):  # the line that was being written when the run was killed
        return False


def _check_same(before: Any, now: Any, where: str) -> None:
    """A run is resumed with the settings that it was begun with."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            _check_same(before.get(key), now.get(key), f"{where}: {key}")
    elif before != now:
        raise ValueError(f"{where} was {before!r} when this run began and is now {now!r}: use another folder")
