"""Guards: a run that cannot come to anything is stopped, with the step and the likely cause."""

from __future__ import annotations

import math
from collections import deque

from diffmark.training.config import GuardConfig


class StoppedError(ValueError):
    """The run was stopped by a guard; the message says at which step and why."""


def check_finite(step: int, terms: dict[str, float]) -> None:
    """Stop at the first loss that is not a number."""
    for name, value in terms.items():
        if not math.isfinite(value):
            raise StoppedError(
                f"step {step}: the loss {name!r} is {value}. Likely causes: a learning rate that is too high, or "
                "fp16 where the model overflows (use bf16 or fp32). The last checkpoint is from before it."
            )


class CollapseGuard:
    """Stops when delta has shrunk to nothing, or when bits are still read by chance after the warm-up."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._accuracy: deque[float] = deque(maxlen=config.window)

    def check(self, step: int, accuracy: float, deviation: float) -> None:
        config = self.config
        self._accuracy.append(accuracy)
        if deviation < config.delta_floor:
            raise StoppedError(
                f"step {step}: delta has collapsed, its standard deviation is {deviation:.2g} (floor "
                f"{config.delta_floor:g}). Losses of imperceptibility pull it to zero while the decoder cannot "
                "read it yet: open gates.imperceptibility later, pretrain longer, or use delta.normalise."
            )
        mean = sum(self._accuracy) / len(self._accuracy)
        full = len(self._accuracy) == config.window
        if step >= config.after and full and mean < config.chance_accuracy:
            raise StoppedError(
                f"step {step}: bits are read by chance, accuracy was {mean:.3f} over the last {config.window} "
                f"steps (guard.chance_accuracy {config.chance_accuracy:g}). Either the encoder outran the decoder "
                "(lower encoder_rate; 5e-5 is the paper's), delta is too weak (raise delta.sigma_start), all "
                "losses came before the bits could be read (pretrain, open gates.imperceptibility later), or there "
                "are more bits than the latents carry (shorter codec.length)."
            )

    def state_dict(self) -> list[float]:
        return list(self._accuracy)

    def load_state_dict(self, state: list[float]) -> None:
        self._accuracy.extend(state)
