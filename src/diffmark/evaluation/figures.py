"""Figures from rows: one function an experiment, each gives a matplotlib figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diffmark.evaluation.lab import Row

GREY = "#999999"


def robustness(rows: list[Row]) -> Any:
    """Bit accuracy against strength, a small panel an attack, a line a method."""
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    figure, axes = _grid(len(attacks), columns=5)
    for axis, attack in zip(axes, attacks, strict=False):
        for method in dict.fromkeys(row["method"] for row in rows):
            chosen = [row for row in rows if (row["attack"], row["method"]) == (attack, method)]
            axis.plot(
                [r["strength"] for r in chosen], [r["bit_accuracy"] for r in chosen], "o-", ms=3, label=method
            )
        axis.axhline(0.5, color=GREY, lw=0.8, ls=":")
        axis.set(title=attack.replace("_", " "), xlim=(0, 1.05), ylim=(0.4, 1.02))
    axes[0].legend(fontsize=7, loc="lower left")
    figure.supxlabel("strength")
    figure.supylabel("bit accuracy")
    return figure


def keys(rows: list[Row]) -> Any:
    """Violins of the bit error rate, one secret for all against a random one each."""
    figure, axes = _grid(1, columns=1, width=6)
    axis = axes[0]
    labels = [f"{row['method']}\n{row['secrets']}" for row in rows]
    axis.violinplot([100 * np.asarray(row["ber"]) for row in rows], showmeans=True)
    axis.set_xticks(range(1, len(rows) + 1), labels, fontsize=8)
    axis.set_ylabel("bit error rate of an image, %")
    return figure


def latency(rows: list[Row]) -> Any:
    """Seconds an image, on a log axis."""
    figure, axes = _grid(1, columns=1, width=6)
    axis = axes[0]
    labels = [f"{row['method']}, batch {row['batch']}" for row in rows]
    axis.barh(labels, [1000 * row["seconds_per_image"] for row in rows])
    axis.set(xscale="log", xlabel="milliseconds an image to decode")
    axis.invert_yaxis()
    return figure


def transfer(rows: list[Row]) -> Any:
    """Bit accuracy on each model of the family, clean and under each distortion."""
    figure, axes = _grid(1, columns=1, width=9)
    axis = axes[0]
    models = list(dict.fromkeys(row["model"] for row in rows))
    cases = list(dict.fromkeys(row["attack"] for row in rows))
    for index, model in enumerate(models):
        heights = [
            next(r["bit_accuracy"] for r in rows if (r["model"], r["attack"]) == (model, c)) for c in cases
        ]
        axis.bar(np.arange(len(cases)) + 0.8 * index / len(models), heights, 0.8 / len(models), label=model)
    axis.set_xticks(np.arange(len(cases)) + 0.4, [case or "clean" for case in cases], rotation=30, fontsize=8)
    axis.set(ylim=(0.4, 1.02), ylabel="bit accuracy")
    axis.legend(fontsize=7, ncols=3)
    return figure


def averaging(rows: list[Row]) -> Any:
    """Bit accuracy after removing or forging with an average of n images."""
    aims = ("remove", "forge")
    figure, axes = _grid(2, columns=2)
    for axis, aim in zip(axes, aims, strict=True):
        for method, secrets in dict.fromkeys((row["method"], row["secrets"]) for row in rows):
            wanted = (aim, method, secrets)
            chosen = [row for row in rows if (row["aim"], row["method"], row["secrets"]) == wanted]
            label = f"{method}, {secrets} secret{'s' if secrets == 'fresh' else ''}"
            axis.plot(
                [r["seen"] for r in chosen], [r["bit_accuracy"] for r in chosen], "o-", ms=3, label=label
            )
        axis.set(title=aim, xscale="log", xlabel="images seen", ylim=(0.4, 1.02), ylabel="bit accuracy")
        axis.axhline(0.5, color=GREY, lw=0.8, ls=":")
    axes[0].legend(fontsize=7)
    return figure


FIGURES: dict[str, Callable[[list[Row]], Any]] = {
    "robustness": robustness,
    "keys": keys,
    "latency": latency,
    "transfer": transfer,
    "averaging": averaging,
}


def _grid(panels: int, columns: int, width: float = 12.0) -> tuple[Any, list[Any]]:
    """A figure without a window, and its axes in reading order; panels that are left over are hidden."""
    from matplotlib.figure import Figure

    lines = -(-panels // columns)
    height = 2.2 * lines + 0.6 if lines > 1 else 3.6
    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    axes = list(np.atleast_1d(figure.subplots(lines, columns)).flat)
    for axis in axes[:panels]:
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes
