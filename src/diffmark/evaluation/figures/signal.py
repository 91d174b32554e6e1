"""Figures of the signal itself."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from diffmark.evaluation.figures.canvas import COLOURS, distinct, grid
from diffmark.evaluation.harness import Row

TITLES = {
    "plain": "unmarked",
    "marked": "marked",
    "difference": "difference, ten times",
    "overlay": "where the mark is (red)",
}


def pictures(rows: list[Row]) -> Any:
    """A line a picture: unmarked, marked, their difference ten times over, and the mark laid over it."""
    chosen = [row for row in rows if row["part"] == "pictures"]
    figure, axes = grid(4 * len(chosen), 4, width=11, height=2.8)
    for number, row in enumerate(chosen):
        for axis, (name, title) in zip(axes[4 * number : 4 * number + 4], TITLES.items(), strict=True):
            axis.imshow(Image.open(io.BytesIO(base64.b64decode(row["shown"][name]))))
            axis.set_axis_off()
            axis.set_title(f"{row['method']}: {title}" if name == "marked" else title, fontsize=9)
        axes[4 * number + 1].text(
            0.5,
            -0.04,
            f"{row['psnr']:.1f} dB",
            ha="center",
            va="top",
            fontsize=9,
            transform=axes[4 * number + 1].transAxes,
        )
    return figure


def delta(rows: list[Row]) -> Any:
    """Delta of one secret by channel, and the mean spectrum of many; one scale each."""
    chosen = [row for row in rows if row["part"] == "delta"]
    if not chosen:
        return None
    method = chosen[0]["method"]
    chosen = [row for row in chosen if row["method"] == method]
    figure, axes = grid(2 * len(chosen), len(chosen), width=11, height=2.7)
    largest = max(np.abs(row["delta"]).max() for row in chosen)
    spectra = np.array([row["spectrum"] for row in chosen])
    for number, row in enumerate(chosen):
        top, bottom = axes[number], axes[len(chosen) + number]
        field = top.imshow(row["delta"], cmap="RdBu", vmin=-largest, vmax=largest)
        power = bottom.imshow(row["spectrum"], cmap="magma", vmin=spectra.min(), vmax=spectra.max())
        top.set_title(f"channel {row['channel']}, deviation {row['deviation']:.3f}", fontsize=9)
        bottom.set_title("spectrum, mean of 64 secrets", fontsize=9)
        for axis in (top, bottom):
            axis.set_axis_off()
    figure.colorbar(field, ax=axes[: len(chosen)], label="delta", shrink=0.9)
    figure.colorbar(power, ax=axes[len(chosen) :], label="log10 power", shrink=0.9)
    return figure


def profiles(rows: list[Row]) -> Any:
    """Power against frequency: of the change in pixels, and of delta."""
    figure, axes = grid(2, 2, width=11, height=3)
    for number, method in enumerate(distinct([row for row in rows if "method" in row], "method")):
        lines = [
            row["radial_power"] for row in rows if row.get("method") == method and row["part"] == "pictures"
        ]
        power = np.mean(lines, axis=0)
        frequency = np.arange(len(power)) / (2 * len(power))
        axes[0].plot(frequency[1:], power[1:], color=COLOURS[number % len(COLOURS)], label=method)
    for row in (row for row in rows if row["part"] == "delta"):
        power = np.array(row["radial_power"])
        axes[1].plot(
            np.arange(len(power)) / (2 * len(power)),
            power,
            color=COLOURS[row["channel"] % len(COLOURS)],
            label=f"{row['method']}, channel {row['channel']}",
        )
    for axis, title, unit in ((axes[0], "change in pixels", "pixel"), (axes[1], "delta", "latent")):
        axis.set(yscale="log", xlabel=f"frequency, cycles a {unit}", ylabel="mean power", title=title)
        if axis.lines:
            axis.legend(fontsize=8, frameon=False)
    return figure


def training(rows: list[Row]) -> Any:
    """Curves of the training run."""
    chosen = [row for row in rows if row["part"] == "training"]
    if not chosen:
        return None
    figure, axes = grid(len(chosen), 3, height=2.4)
    for number, (axis, row) in enumerate(zip(axes, chosen, strict=True)):
        axis.plot(*np.array(row["points"]).T, color=COLOURS[number], lw=1)
        axis.set_title(row["curve"].replace("_", " "), fontsize=10)
        axis.set_xlabel("step", fontsize=9)
    return figure
