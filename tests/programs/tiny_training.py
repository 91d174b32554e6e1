"""A training run of seconds, as a program of its own: python tiny_training.py FOLDER."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from conftest import _build
from test_training import latents, tiny_config

from diffmark.training import runs
from diffmark.training.config import OptimiserConfig
from diffmark.training.dual import train
from diffmark.training.optimisation import make_accelerator
from diffmark.training.paths import Paths


def die_while_saving(step: int) -> None:
    """Write half of the checkpoint of `step`, then die as if killed."""
    write = runs._write

    def half(path: Path, state: dict) -> None:
        write(path, state)
        if state.get("step") == step:
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    runs._write = half


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--die-while-saving", type=int)
    arguments = parser.parse_args()
    if arguments.die_while_saving:
        die_while_saving(arguments.die_while_saving)
    accelerator = make_accelerator("fp32", cpu=True)
    config = tiny_config(
        optimiser=OptimiserConfig(
            steps=arguments.steps, batch=4, warmup=2, accumulation=arguments.accumulation
        )
    )
    config = replace(config, log=replace(config.log, measure_every=10_000))
    torch.set_num_threads(1)
    vae = _build("sd").pipe.vae
    train(config, arguments.folder, vae, Paths(config, latents(), latents(6, 1)), accelerator=accelerator)


if __name__ == "__main__":
    main()
