"""AdamW for a model or for each of its parts, on one process or many.

The codec is small (2.6 million parameters), so gradients are averaged over processes in one all-reduce after the
last accumulated part, whatever way they were computed. Part k of a step is the same batch however it is shared
out, so two processes take the step that one process takes with two accumulated parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn


def make_accelerator(precision: str, cpu: bool = False) -> Accelerator:
    """An Accelerator for fp32, bf16 or fp16."""
    return Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=cpu)


class Optimiser:
    """AdamW on some parts of a model, each with its own rate and clipping norm; without parts on all of it."""

    def __init__(
        self,
        model: nn.Module,
        accelerator: Accelerator,
        rates: Sequence[float],
        clips: Sequence[float] = (5.0, 1.0),
        weight_decay: float = 0.01,
        parts: Sequence[str] = ("encoder", "decoder"),
    ) -> None:
        self.model, self.accelerator, self.rates, self.clips = model, accelerator, tuple(rates), tuple(clips)
        self.networks: dict[str, nn.Module] = {part: getattr(model, part) for part in parts} or {
            "model": model
        }
        self._optimisers = [
            accelerator.prepare(torch.optim.AdamW(_trained(network), lr=rate, weight_decay=weight_decay))
            for network, rate in zip(self.networks.values(), self.rates, strict=True)
        ]

    def set_rates(self, rate: Callable[[float], float]) -> None:
        """Each part's learning rate, of its peak rate."""
        for optimiser, peak in zip(self._optimisers, self.rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate(peak)

    def backward(self, loss: Tensor) -> None:
        self.accelerator.backward(loss)

    def update(self) -> dict[str, Tensor]:
        """Average, clip, step; returns the norm of each part's gradient before clipping."""
        self._average_gradients()
        self.accelerator.unscale_gradients()  # once for all: a scaler refuses a second time
        norms = {
            f"gradient_{name}": nn.utils.clip_grad_norm_(network.parameters(), clip)
            for (name, network), clip in zip(self.networks.items(), self.clips, strict=True)
        }
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        return norms

    def _average_gradients(self) -> None:
        if self.accelerator.num_processes == 1:
            return
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        flat = self.accelerator.reduce(flat, reduction="mean")
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def average_buffers(self) -> None:
        """Let all processes have the same running statistics (before a measurement or a checkpoint)."""
        if self.accelerator.num_processes == 1:
            return
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(self.accelerator.reduce(buffer.clone(), reduction="mean"))

    def state_dict(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        return {
            "optimisers": [optimiser.state_dict() for optimiser in self._optimisers],
            "scaler": scaler.state_dict() if scaler is not None else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for optimiser, values in zip(self._optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(values)
        if self.accelerator.scaler is not None and state["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])


def _trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def parts_of_step(accelerator: Accelerator, accumulation: int) -> Iterator[int]:
    """Numbers of the parts of a step that this process computes."""
    for index in range(accumulation):
        yield index * accelerator.num_processes + accelerator.process_index


def part_size(accelerator: Accelerator, batch: int, accumulation: int) -> int:
    """Images in each part; raises where the batch does not divide."""
    parts = accelerator.num_processes * accumulation
    if batch % parts or batch // parts < 2:
        raise ValueError(
            f"a batch of {batch} does not divide into {accelerator.num_processes} processes times {accumulation} "
            "accumulated parts of two images or more"
        )
    return batch // parts
