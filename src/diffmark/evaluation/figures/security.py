"""Figures of the security experiments."""

from __future__ import annotations

from typing import Any

from diffmark.evaluation.figures.canvas import COLOURS, chance_line, distinct, grid, legend_below, whiskers
from diffmark.evaluation.harness import Row

AIMS = {"remove": "mark subtracted from marked images", "forge": "mark added to other images"}


def averaging(rows: list[Row]) -> Any:
    """Bit accuracy after removing or forging with an average of n images, in pixels and in latents."""
    spaces = distinct(rows, "space")
    figure, axes = grid(2 * len(spaces), 2, width=11, height=2.7, sharey=True)
    panels = [(space, aim) for space in spaces for aim in AIMS]
    for axis, (space, aim) in zip(axes, panels, strict=True):
        lines = dict.fromkeys((row["method"], row["secrets"]) for row in rows)
        for number, (method, secrets) in enumerate(lines):
            wanted = (space, aim, method, secrets)
            chosen = [r for r in rows if (r["space"], r["aim"], r["method"], r["secrets"]) == wanted]
            label = f"{method}, {'one secret' if secrets == 'one' else 'fresh secrets'}"
            points = [r["seen"] for r in chosen], [r["bit_accuracy"] for r in chosen]
            axis.plot(*points, "o-", ms=3, color=COLOURS[number % len(COLOURS)], label=label)
        axis.set(xscale="log", ylim=(-0.03, 1.05), xlabel="marked images seen", ylabel="bit accuracy")
        axis.set_title(f"{AIMS[aim]}, averages of {space}", fontsize=10)
        chance_line(axis)
    legend_below(figure, axes[0])
    return figure


def collusion(rows: list[Row]) -> Any:
    """Whether one of the colluders is still named."""
    figure, axes = grid(1, 1, width=7.5, height=3.2)
    lines = dict.fromkeys((row["method"], row["mixed"]) for row in rows)
    for number, (method, mixed) in enumerate(lines):
        chosen = [row for row in rows if (row["method"], row["mixed"]) == (method, mixed)]
        rates = [row["someone_named"] for row in chosen]
        axes[0].errorbar(
            [row["colluders"] + 0.06 * number for row in chosen],
            [rate["value"] for rate in rates],
            yerr=whiskers(rates),
            fmt="o-",
            ms=4,
            lw=1,
            color=COLOURS[number % len(COLOURS)],
            label=f"{method}, {mixed}",
        )
    axes[0].set(
        xlabel="accounts that mix their copies", ylabel="images with a colluder named", ylim=(-0.03, 1.05)
    )
    legend_below(figure, axes[0])
    return figure
