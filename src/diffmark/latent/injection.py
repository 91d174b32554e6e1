"""How much of delta is added before each denoising step: one object for training, bridge and inference.

A dose is distributed over diffusion time: a step gets the dose times the mass of a density between its time and
the next one's. Few steps and many then deliver the same dose at the same noise levels, so what is learned on a
four-step bridge holds for fifty steps of any scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MODES = ("persistent", "paper", "mean", "late", "final", "initial")


@dataclass(frozen=True)
class Injection:
    """A mode and a dose.

    persistent  uniform over diffusion time
    paper       the whole dose at every step (Algorithm 3 with dose 1); the sum grows with the number of steps
    mean        dose / N at every step (the DDIM path of Algorithm 2)
    late        uniform over a part of the trajectory, start >= time >= end; below it the model paints undisturbed
    final       all of it at z0, after the last step: no denoiser in between
    initial     all of it in z_T, before the first step, where it takes the place of noise (`diffmark.latent.noise`)
    """

    mode: str = "late"
    dose: float = 1.0
    start: float = 0.2  # late only: the diffusion time in (0, 1] where the density begins; 1 is pure noise
    end: float = 0.0  # late only: the diffusion time in [0, start) where it ends

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown injection mode {self.mode!r}; there are {', '.join(MODES)}")
        if not np.isfinite(self.dose):
            raise ValueError(f"dose must be a finite number, got {self.dose}")
        if self.mode == "initial" and not 0 <= self.dose <= 1:
            raise ValueError(f"a dose of initial noise is at least 0 and at most 1, got {self.dose}")
        if not 0 < self.start <= 1:
            raise ValueError(f"start is a diffusion time in (0, 1], got {self.start}")
        if not 0 <= self.end < self.start:
            raise ValueError(f"end is a diffusion time in [0, start), got {self.end} with start {self.start}")

    def weights(self, times: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """Shares of delta for steps at `times`, shape (n,) -> (n + 1,).

        `times` falls from near 1 (noise) towards 0 (image). Share k is added to the latents before the denoiser
        sees step k, the last share to z0. Mass above the first time goes to the first step.
        """
        times = np.asarray(times, dtype=np.float64)
        if times.ndim != 1 or times.size == 0 or (np.diff(times) > 0).any() or times[0] > 1 or times[-1] < 0:
            raise ValueError(f"times must fall within [0, 1], got {times}")
        steps = len(times)
        if self.mode == "final":
            return np.append(np.zeros(steps), self.dose)
        if self.mode == "initial":
            return np.append(self.dose, np.zeros(steps))
        if self.mode in ("paper", "mean"):
            # A time that comes twice belongs to a two-stage solver (Heun, PNDM): the first time it only probes.
            starts = np.append(np.diff(times) != 0, True).astype(float)
            share = self.dose if self.mode == "paper" else self.dose / starts.sum()
            return np.append(share * starts, 0.0)
        start, end = (1.0, 0.0) if self.mode == "persistent" else (self.start, self.end)
        knots = np.concatenate([[1.0], times[1:], [0.0]])
        below = (np.clip(knots, end, start) - end) / (start - end)  # mass of the density below each knot
        return np.append(self.dose * -np.diff(below), 0.0)
