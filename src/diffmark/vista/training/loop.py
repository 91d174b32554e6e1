"""The one training loop of the family: seeded by the step, logged as JSON lines, resumed exactly.

A job says what is trained and what the loss of a step is. The random numbers of a step are seeded with
(seed, step), so a run that was stopped and resumed makes the same ones as a run that was not.
"""

import json
import time
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from diffmark.training.draws import Draws
from diffmark.vista.training.config import LoopConfig

STATE, LOG = "state.pt", "log.jsonl"


class Job(Protocol):
    """What a training run provides."""

    @property
    def model(self) -> nn.Module:
        """All that is trained."""
        ...

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a step, and figures worth logging."""
        ...


def learning_rate(config: LoopConfig, step: int) -> float:
    """Rises over `warmup` steps, stays, falls to zero over the last `decay` steps."""
    rise = (step + 1) / max(config.warmup, 1)
    fall = (config.steps - step) / max(config.decay, 1)
    return config.learning_rate * min(1.0, rise, fall)


def train(job: Job, config: LoopConfig, folder: Path, stop_after: int | None = None) -> dict[str, Tensor]:
    """Train `job` for `config.steps` steps, from the state in `folder` if there is one.

    Writes `state.pt` and `log.jsonl`; stops early after `stop_after` steps. Returns the moving average of the
    weights, or the weights if there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model: Any = job.model
    model = model.to(memory_format=torch.channels_last).train()
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    average = (
        {name: value.detach().clone() for name, value in model.state_dict().items()} if config.ema else {}
    )
    first, seconds = 0, 0.0
    if (folder / STATE).exists():
        state = torch.load(folder / STATE, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average, first, seconds = state["average"], state["step"], state["seconds"]

    last = config.steps if stop_after is None else min(config.steps, first + stop_after)
    sums: dict[str, float] = {}
    added = 0
    start = time.monotonic() - seconds
    for step in tqdm(range(first, last), initial=first, total=config.steps, disable=None):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        loss, figures = job.loss(step, Draws(config.seed, step))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, config.clip)
        optimizer.step()
        optimizer.zero_grad()
        if average:
            _follow(average, model, min(config.ema, (step + 1) / (step + 10)))

        done = step + 1
        for name, value in {"loss": loss, "norm": norm, **figures}.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach())
        added += 1
        if done % config.log_every == 0:
            line = {name: round(value / added, 6) for name, value in sums.items()}
            _log(folder / LOG, {"step": done, "seconds": round(time.monotonic() - start, 1), **line})
            sums, added = {}, 0
        if done % config.save_every == 0 or done == last:
            _save(folder / STATE, model, optimizer, average, done, time.monotonic() - start)
    return average or {name: value.detach() for name, value in model.state_dict().items()}


@torch.no_grad()
def _follow(average: dict[str, Tensor], model: nn.Module, decay: float) -> None:
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            average[name].lerp_(value, 1 - decay)
        else:
            average[name].copy_(value)


def _log(path: Path, line: dict[str, float]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def seconds_of(folder: Path) -> float:
    """How long a run's steps took, in all its sessions."""
    return round(float(torch.load(folder / STATE, weights_only=True)["seconds"]), 1)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor],
          step: int, seconds: float) -> None:  # fmt: skip
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average,
             "step": step, "seconds": seconds}  # fmt: skip
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)  # a run that is killed here leaves the state before
