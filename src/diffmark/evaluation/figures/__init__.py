"""Figures from rows: functions that give a matplotlib figure, or None where there is nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffmark.evaluation.figures import detection, security, signal

Draw = Callable[[list[dict[str, Any]]], Any]

FIGURES: dict[str, dict[str, Draw]] = {
    "false_positives": {"false_positives": detection.false_positives},
    "robustness": {"robustness_cells": detection.cells, "robustness": detection.robustness},
    "strength": {"strength": detection.strength},
    "keys": {"keys": detection.keys},
    "transfer": {"transfer": detection.transfer},
    "latency": {"latency": detection.latency},
    "identification": {"identification": detection.identification},
    "averaging": {"averaging": security.averaging},
    "collusion": {"collusion": security.collusion},
    "signal": {
        "signal_pictures": signal.pictures,
        "signal_delta": signal.delta,
        "signal_profiles": signal.profiles,
        "signal_training": signal.training,
    },
    "ablations": {"ablations": detection.ablations},
}
"""Of each experiment: the name of the file, and what draws it."""
