"""Gates, annealing and ramps: named functions of the step, which counts from 0."""

from __future__ import annotations

import itertools
import math


def is_open(step: int, gate: int) -> bool:
    """g_i(t) = 1[t >= tau_i]; a negative gate never opens."""
    return 0 <= gate <= step


def check_order(reconstruction: int, imperceptibility: int, robustness: int) -> None:
    """The schedule of Eq. 18: no loss of a later group may open before the groups in front of it."""
    named = {"reconstruction": reconstruction, "imperceptibility": imperceptibility, "robustness": robustness}
    gates = [(name, gate) for name, gate in named.items() if gate >= 0]
    for (first, earlier), (second, later) in itertools.pairwise(gates):
        if later < earlier:
            raise ValueError(
                f"the gate of {second} opens at step {later}, before that of {first} at step {earlier}: "
                "losses open in the order reconstruction, imperceptibility, robustness"
            )


def ramp(step: int, start: float, end: float, over: int, gate: int = 0) -> float:
    """From `start` at the gate to `end` after `over` steps, linear, and level before and after."""
    share = (step - gate) / over if over > 0 else float(step >= gate)
    return start + (end - start) * min(max(share, 0.0), 1.0)


def pretraining_noise(step: int, start: float, end: float, steps: int) -> float:
    """Algorithm 1: sigma_n rises linearly from the first to the last step of pretraining."""
    return ramp(step, start, end, steps)


def sigma_target(step: int, start: float, end: float, horizon: int) -> float:
    """Eq. 19: the target of delta's standard deviation, on a cosine from `start` to `end` over T_a steps."""
    share = min(step / horizon, 1.0) if horizon > 0 else 1.0
    return start + (end - start) / 2 * (1 - math.cos(math.pi * share))


def kl_weight(step: int, start: float, end: float, warmup: int) -> float:
    """beta, the weight of L_KL: linear over its warm-up (0.001 to 0.05 over 1,000 steps in the paper)."""
    return ramp(step, start, end, warmup)


def attack_strength(step: int, start: float, end: float, warmup: int, gate: int) -> float:
    """alpha(t) of the robustness stage: linear from its gate on."""
    return ramp(step, start, end, warmup, gate)


def learning_rate(step: int, peak: float, warmup: int, steps: int, final: float = 1e-6) -> float:
    """Linear warm-up to `peak` over `warmup` steps, then linear decay to `final` at the last step."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return ramp(step, peak, min(final, peak), steps - 1 - warmup, gate=warmup)
