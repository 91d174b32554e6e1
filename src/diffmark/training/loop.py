"""The training loop: steps from the last checkpoint on, lines of the log, checkpoints. One for all trainings.

A `Training` says what one step is and what has to be kept. Random numbers are seeded by the step (`Draws`), so a
run that was stopped and resumed makes the same weights and the same log as one that was not.

`train_network` trains one network on a loss of its own: Vista's parts and the baselines.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from diffmark.training.draws import Draws
from diffmark.training.means import RunningMeans
from diffmark.training.optimisation import Optimiser, make_accelerator
from diffmark.training.runs import Run


class Training(Protocol):
    """What the loop asks of a training."""

    run: Run
    optimiser: Optimiser
    means: RunningMeans  # of the log's figures; a step adds its own

    def step(self, step: int) -> bool:
        """Train one step; says whether the run is to end early."""
        ...

    def measured(self, done: int, complete: bool) -> dict[str, float]:
        """Figures that are measured after some steps, and at the end; none after others."""
        ...

    def shared(self) -> dict[str, Any]:
        """What a checkpoint holds once for all processes, besides the optimiser."""
        ...

    def own(self) -> dict[str, Any]:
        """What each process has for itself."""
        ...

    def restore(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        ...


def run_steps(
    training: Training,
    steps: int,
    log_every: int,
    save_every: int,
    stop_after: int | None = None,
    what: str = "training",
) -> int:
    """Train up to `steps`, or `stop_after` more than there are; returns how many are done."""
    run, first, seconds = training.run, 0, 0.0
    if (loaded := run.load()) is not None:
        shared, own = loaded
        first, seconds = shared["step"], shared["seconds"]
        training.optimiser.load_state_dict(shared["optimiser"])
        training.restore(shared, own)
    run.start_log(first)
    last = steps if stop_after is None else min(steps, first + stop_after)
    begun, done = time.monotonic() - seconds, first
    for step in tqdm(range(first, last), what, initial=first, total=steps, disable=None):
        early = training.step(step)
        done = step + 1
        complete = early or done == steps
        figures = training.measured(done, complete)
        if done % log_every == 0 or figures or complete:
            run.log(done, {**training.means.means(), **figures})
        if done % save_every == 0 or early or done == last:
            training.optimiser.average_buffers()
            state = {"optimiser": training.optimiser.state_dict(), "seconds": time.monotonic() - begun}
            run.save(done, state | training.shared(), training.own())
        if early:
            break
    run.close()
    return done


@dataclass(frozen=True)
class LoopConfig:
    """How long and how fast: warm-up, plateau, linear descent to zero over the last `decay` steps."""

    steps: int
    batch: int
    learning_rate: float
    seed: int = 0
    warmup: int = 100
    decay: int = 1000
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.0  # decay of the moving average of the weights; 0 keeps none
    log_every: int = 50
    save_every: int = 500

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        rise = (step + 1) / max(self.warmup, 1)
        fall = (self.steps - step) / max(self.decay, 1)
        return self.learning_rate * min(1.0, rise, fall)


class Job(Protocol):
    """A network and its loss."""

    @property
    def model(self) -> nn.Module:
        """All that is trained."""
        ...

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a step, and figures worth logging."""
        ...


class MovingAverage:
    """The exponential moving average of a network's weights; its first steps count for more."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """w <- d w + (1 - d) w_step with d = min(decay, (step + 1) / (step + 10)); what is no float is copied."""
        decay = min(self.decay, (step + 1) / (step + 10))
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self.weights[name].lerp_(value, 1 - decay)
            else:
                self.weights[name].copy_(value)


class NetworkTraining:
    """The training of a job's network, on the CPU unless told otherwise."""

    def __init__(self, job: Job, config: LoopConfig, folder: Path, cpu: bool = True) -> None:
        accelerator = make_accelerator("fp32", cpu)
        self.job, self.config = job, config
        self.model = job.model.to(accelerator.device)
        nn.Module.to(self.model, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.train()
        rates, clips = (config.learning_rate,), (config.clip,)
        self.optimiser = Optimiser(self.model, accelerator, rates, clips, config.weight_decay, parts=())
        self.average = MovingAverage(self.model, config.ema) if config.ema else None
        self.run = Run(folder, config, accelerator, keep=1)
        self.means = RunningMeans()

    def step(self, step: int) -> bool:
        self.optimiser.set_rates(lambda peak: self.config.rate(step))
        loss, figures = self.job.loss(step, Draws(self.config.seed, step))
        self.optimiser.backward(loss)
        norms = self.optimiser.update()
        if self.average:
            self.average.update(self.model, step)
        self.means.add({"loss": loss, **norms, **figures})
        return False

    def measured(self, done: int, complete: bool) -> dict[str, float]:
        return {}

    def shared(self) -> dict[str, Any]:
        average = self.average.weights if self.average else {}
        return {"model": self.model.state_dict(), "average": average}

    def own(self) -> dict[str, Any]:
        return {}

    def restore(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        self.model.load_state_dict(shared["model"])
        if self.average:
            self.average.weights = shared["average"]

    def weights(self) -> dict[str, Tensor]:
        """The moving average of the weights, or the weights if there is none."""
        if self.average:
            return self.average.weights
        return {name: value.detach() for name, value in self.model.state_dict().items()}


def train_network(
    job: Job, config: LoopConfig, folder: Path, stop_after: int | None = None, cpu: bool = True
) -> tuple[dict[str, Tensor], bool]:
    """Train a job's network in `folder`; its weights, and whether all steps are done."""
    training = NetworkTraining(job, config, folder, cpu)
    done = run_steps(training, config.steps, config.log_every, config.save_every, stop_after)
    return training.weights(), done >= config.steps


def train(job: Job, config: LoopConfig, folder: Path, stop_after: int | None = None) -> dict[str, Tensor]:
    """The weights that `train_network` gives."""
    return train_network(job, config, folder, stop_after)[0]
