"""Curves of a run's log as one picture (matplotlib)."""

from __future__ import annotations

import json
from pathlib import Path

PANELS = {
    "bit accuracy": ("accuracy", "measured_accuracy"),
    "losses": ("loss",),
    "standard deviation of delta": ("delta_deviation", "sigma_target"),
    "same-seed PSNR (dB)": ("measured_psnr",),
    "gradient norms": ("gradient",),
    "diversity of delta": ("diversity",),
}


def read_log(run: str | Path) -> list[dict[str, float]]:
    """The lines of a run's log.jsonl."""
    file = Path(run) / "log.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"{file} is missing: {run} is not the folder of a training run")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    if not lines:
        raise ValueError(f"{file} is empty: the run has not logged anything yet")
    return lines


def plot_run(run: str | Path, out: str | Path | None = None) -> Path:
    """Draw a run's curves into `out` (RUN/curves.png by default)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = read_log(run)
    names = {name for line in lines for name in line} - {"step"}
    panels = {title: sorted(n for n in names if n.startswith(heads)) for title, heads in PANELS.items()}
    panels = {title: curves for title, curves in panels.items() if curves}
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, 2.6 * len(panels)), sharex=True, squeeze=False)
    for axis, (title, curves) in zip(axes[:, 0], panels.items(), strict=True):
        for name in curves:
            points = [(line["step"], line[name]) for line in lines if name in line]
            axis.plot(*zip(*points, strict=True), label=name, linewidth=1)
        axis.set_ylabel(title)
        axis.legend(fontsize=6, ncol=3)
        axis.grid(alpha=0.3)
    axes[-1, 0].set_xlabel("step")
    figure.tight_layout()
    path = Path(out) if out else Path(run) / "curves.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
