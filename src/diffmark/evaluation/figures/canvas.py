"""What all figures share."""

from __future__ import annotations

from typing import Any

import numpy as np

GREY = "#888888"
COLOURS = (
    "#1f5fa8",
    "#d1631b",
    "#2b8a4b",
    "#9c3a8f",
    "#7a6a00",
    "#c02f3a",
    "#3a9fb5",
    "#555555",
    "#b07a4a",
    "#6a5acd",
    "#e5a100",
    "#8fbf3f",
)


def grid(
    panels: int, columns: int, width: float = 12.0, height: float = 2.3, **options: Any
) -> tuple[Any, list[Any]]:
    """A figure without a window, and its axes in reading order; panels that are left over are hidden."""
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(width, height * lines + 0.9), layout="constrained", dpi=110)
    axes = list(np.atleast_1d(figure.subplots(lines, columns, **options)).flat)
    for axis in axes[:panels]:
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[panels:]:
        axis.set_visible(False)
    return figure, axes[:panels]


def legend_below(figure: Any, axis: Any) -> None:
    """One legend for all panels."""
    handles, labels = axis.get_legend_handles_labels()
    if labels:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize=9, frameon=False
        )


def chance_line(axis: Any) -> None:
    axis.axhline(0.5, color=GREY, lw=0.8, ls=":")


def whiskers(rates: list[dict[str, float]]) -> Any:
    """Distances below and above for error bars."""
    return np.array([[r["value"] - r["low"], r["high"] - r["value"]] for r in rates]).T.clip(0)


def distinct(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """The values of a column in the order they come."""
    return list(dict.fromkeys(row[name] for row in rows))
