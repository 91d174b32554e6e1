"""Figures of detection: who is found, who is not, and how fast."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from diffmark.evaluation.figures.canvas import (
    COLOURS,
    GREY,
    chance_line,
    distinct,
    grid,
    legend_below,
    whiskers,
)
from diffmark.evaluation.rows import Row
from diffmark.evaluation.summary import by_attack, ranking, robustness_lines


def false_positives(rows: list[Row]) -> Any:
    """Observed rates with intervals against the stated rate, a panel a rate."""
    rates = [name for name in ("fpr_0.01", "fpr_0.001") if any(name in row for row in rows)]
    methods = distinct(rows, "method")
    labels = list(dict.fromkeys(_source(row) for row in rows))
    figure, axes = grid(len(rates), 2, height=(0.2 + 0.12 * len(methods)) * len(labels) + 0.8, sharey=True)
    for axis, name in zip(axes, rates, strict=True):
        stated = float(name.split("_")[1])
        for number, method in enumerate(methods):
            chosen = [row for row in rows if row["method"] == method and name in row]
            places = np.array([labels.index(_source(row)) for row in chosen]) + 0.8 * number / len(methods)
            found = [row[name] for row in chosen]
            axis.errorbar(
                [100 * r["value"] for r in found],
                places,
                xerr=100 * whiskers(found),
                fmt="o",
                ms=4,
                color=COLOURS[number % len(COLOURS)],
                label=method,
            )
        axis.axvline(100 * stated, color=GREY, ls=":", lw=1)
        axis.set(
            xlabel="unmarked images taken for marked, %",
            title=f"stated: {100 * stated:g}%",
            xlim=(0, None),
        )
    axes[0].set_yticks(np.arange(len(labels)) + 0.4 - 0.4 / len(methods), labels, fontsize=9)
    axes[0].invert_yaxis()
    legend_below(figure, axes[0])
    return figure


def _source(row: Row) -> str:
    return (
        row["source"]
        if row["attacked"] is None
        else f"{row['source']}, {'attacked' if row['attacked'] else 'clean'}"
    )


def robustness(rows: list[Row]) -> Any:
    """TPR at exact FPR 0.1% against strength: a panel an attack, DiffMark's forms and the best of the others."""
    rated = [row for row in rows if "tpr" in row]
    attacks, methods = distinct(rated, "attack"), distinct(rated, "method")
    if not attacks:
        return None
    own = [method for method in methods if method.startswith("diffmark") and "@" not in method]
    own = own or methods[:1]
    table = by_attack(rated)
    figure, axes = grid(len(attacks), 4, height=2.0, sharey=True)
    for place, (axis, attack) in enumerate(zip(axes, attacks, strict=True)):
        others = {m: cells[attack]["value"] for m, cells in table.items() if attack in cells and m not in own}
        best = max(others, key=lambda name: others[name]) if others else None
        for number, method in enumerate([*own, *([best] if best else [])]):
            chosen = [row for row in rated if (row["attack"], row["method"]) == (attack, method)]
            colour = GREY if method == best else COLOURS[number % len(COLOURS)]
            axis.errorbar(
                [row["strength"] + 0.012 * number for row in chosen],
                [row["tpr"]["value"] for row in chosen],
                yerr=whiskers([row["tpr"] for row in chosen]) if chosen else None,
                fmt="s--" if method == best else "o-",
                ms=3,
                lw=1.2,
                elinewidth=0.6,
                color=colour,
                label="the best of the others" if method == best else method,
            )
        axis.set_title(_attack_title(rated, attack) + (f"\n(best other: {best})" if best else ""), fontsize=8)
        axis.set(xlim=(0, 1.08), ylim=(-0.05, 1.05), xticks=(0, 0.5, 1))
        if place + 4 >= len(attacks):  # nothing below it
            axis.set_xlabel("strength", fontsize=9)
        if place % 4 == 0:
            axis.set_ylabel("TPR", fontsize=9)
    legend_below(figure, axes[0])
    return figure


def cells(rows: list[Row]) -> Any:
    """All methods under all attacks: TPR at exact FPR 0.1%, mean over strengths."""
    methods, lines = robustness_lines(rows)
    if not methods:
        return None
    values = np.array([[_value(cell) for cell in line[1:]] for line in lines], float)
    figure, (axis,) = grid(1, 1, width=max(6.0, 2.2 + 0.75 * len(methods)), height=0.5 + 0.27 * len(lines))
    axis.imshow(values, cmap="RdYlGn", vmin=0, vmax=1, aspect="auto", alpha=0.75)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    names = [str(line[0]).replace("_", " ") for line in lines]
    axis.set_yticks(range(len(lines)), names, fontsize=8)
    axis.set_xticks(range(len(methods)), methods, rotation=40, ha="left", fontsize=8)
    axis.xaxis.tick_top()
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def _value(cell: Row | None) -> float:
    return np.nan if not cell or cell["value"] is None else cell["value"]


def survival(clean: list[Row], attacked: list[Row]) -> Any:
    """Survival against visibility: the average under attack over SSIMULACRA2, DiffMark's pixel layer as a curve."""
    seen = {row["method"]: row["ssimulacra2"] for row in clean if "ssimulacra2" in row}
    found = {method: rate for method, rate in ranking(by_attack(attacked)) if method in seen}
    if not found:
        return None
    figure, (axis,) = grid(1, 1, width=8, height=4.2)
    curve = sorted((method for method in found if method.startswith("diffmark-pixel")), key=seen.__getitem__)
    if curve:
        places = [seen[m] for m in curve], [found[m] for m in curve]
        axis.plot(*places, "o-", color=COLOURS[0], label="diffmark-pixel at several strengths")
    for method in (method for method in found if method not in curve):
        colour = COLOURS[0] if method.startswith("diffmark") else COLOURS[1]
        axis.plot(seen[method], found[method], "D" if method.startswith("diffmark") else "s", color=colour)
        axis.annotate(method, (seen[method], found[method]), (5, 4), textcoords="offset points", fontsize=9)
    axis.axvspan(90, 100, color="#2b8a4b", alpha=0.08)
    axis.text(99.5, 0.02, "not seen", ha="right", fontsize=8, color="#2b8a4b")
    axis.set(xlabel="SSIMULACRA2 of marked pictures (100: no difference)", ylim=(0, 1.05))
    axis.set_ylabel("TPR at exact FPR 0.1%, average of the attacks")
    axis.set_xlim(max(min(seen[m] for m in found) - 5, -60), 101)
    if curve:
        axis.legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def _attack_title(rows: list[Row], attack: str) -> str:
    chosen = [row for row in rows if row["attack"] == attack]
    first, last = chosen[0], chosen[-1]
    lines = [attack.replace("_", " ")]
    if len(chosen) == 1 or first["value"] != last["value"]:
        lines.append(f"to {last['value']:.3g} {last['unit']}")
    if last.get("by"):
        lines += textwrap.wrap(f"by {last['by']}", 28)
    return "\n".join(lines)


def strength(rows: list[Row]) -> Any:
    """Bit accuracy against PSNR; every point a factor on delta."""
    methods = distinct(rows, "method")
    figure, axes = grid(len(methods), 2, width=7.5 if len(methods) == 1 else 12, height=3.2, sharey=True)
    for axis, method in zip(axes, methods, strict=True):
        mine = [row for row in rows if row["method"] == method]
        for number, case in enumerate(distinct(mine, "case")):
            chosen = [row for row in mine if row["case"] == case]
            points = [row["psnr"] for row in chosen], [row["bit_accuracy"] for row in chosen]
            axis.plot(*points, "o-", ms=4, color=COLOURS[number], label=case)
        for row in (row for row in mine if row["case"] == mine[0]["case"]):
            axis.annotate(
                f"x{row['delta_times']:g}", (row["psnr"], 0.42), fontsize=8, color=GREY, ha="center"
            )
        chance_line(axis)
        axis.set(xlabel="same-seed PSNR, dB", ylabel="bit accuracy", ylim=(0.4, 1.02), title=method)
    legend_below(figure, axes[0])
    return figure


def keys(rows: list[Row]) -> Any:
    """Violins of the bit error rate, one secret for all against a random one each; errors against distance."""
    figure, axes = grid(2, 2, width=11, height=3.2)
    labels = [f"{row['method']}\n{row['secrets']}" for row in rows]
    axes[0].violinplot([100 * np.asarray(row["ber"]) for row in rows], showmeans=True)
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if len(rows) > 4 else {}
    axes[0].set_xticks(range(1, len(rows) + 1), labels, fontsize=8, **turned)
    axes[0].set(ylabel="bit error rate of an image, %", ylim=(0, None))
    for number, row in enumerate(row for row in rows if "distance" in row):
        said = f", r = {row['pearson_r']:.2f}" if "pearson_r" in row else ", no errors"
        errors = 100 * np.asarray(row["ber"])
        axes[1].plot(
            row["distance"], errors, "o", ms=3, alpha=0.5, color=COLOURS[number], label=row["method"] + said
        )
    axes[1].set(xlabel="Hamming distance to the fixed secret", ylabel="bit error rate, %", ylim=(0, None))
    axes[1].legend(fontsize=8, frameon=False)
    return figure


def latency(rows: list[Row]) -> Any:
    """Milliseconds an image, on a log axis."""
    figure, axes = grid(1, 1, width=8, height=0.32 * len(rows) + 0.6)
    labels = [f"{row['method']}, batch of {row['batch']}" for row in rows]
    bars = axes[0].barh(labels, [1000 * row["seconds_per_image"] for row in rows], color=COLOURS[0])
    axes[0].bar_label(
        bars, [f"{1000 * row['seconds_per_image']:.3g} ms" for row in rows], padding=3, fontsize=8
    )
    axes[0].set(xscale="log", xlabel="milliseconds an image to read", xlim=(1, None))
    axes[0].margins(x=0.15)
    axes[0].invert_yaxis()
    return figure


def transfer(rows: list[Row]) -> Any:
    """Bit accuracy on each model of the family, clean and the mean of each distortion's strengths."""
    figure, axes = grid(1, 1, width=10, height=3.2)
    rows = [row for row in rows if row["method"] == rows[0]["method"]]
    models, cases = distinct(rows, "model"), distinct(rows, "attack")
    found = {
        (model, case): np.mean(
            [row["bit_accuracy"] for row in rows if (row["model"], row["attack"]) == (model, case)]
        )
        for model in models
        for case in cases
    }
    for number, model in enumerate(models):
        places = np.arange(len(cases)) + 0.8 * number / len(models)
        heights = [found[model, case] for case in cases]
        axes[0].bar(places, heights, 0.8 / len(models), label=model, color=COLOURS[number % len(COLOURS)])
    names = [case.replace("_", " ") if case else "clean" for case in cases]
    axes[0].set_xticks(np.arange(len(cases)) + 0.4 - 0.4 / len(models), names, fontsize=9)
    axes[0].set(ylim=(0.4, 1.02), ylabel="bit accuracy, mean of strengths")
    chance_line(axes[0])
    legend_below(figure, axes[0])
    return figure


def identification(rows: list[Row]) -> Any:
    """Closed-set top-1 and open-set naming against the number of keys, of the method that a run is about."""
    rows = [row for row in rows if row["method"] == rows[0]["method"]]
    figure, axes = grid(2, 2, width=11, height=3.2, sharey=True)
    for axis, what, title in (
        (axes[0], "top1", "ranked first (closed set)"),
        (axes[1], "named", "named, family-wise error 1e-6 (open set)"),
    ):
        for number, case in enumerate(distinct(rows, "case")):
            for kind, style in (("soft", "o-"), ("hard", "s:")):
                chosen = [row for row in rows if (row["case"], row["ranking"]) == (case, kind)]
                points = [row["keys"] for row in chosen], [row[what] for row in chosen]
                axis.plot(*points, style, ms=4, color=COLOURS[number], label=f"{case}, {kind}")
        axis.set(xscale="log", xlabel="keys", title=title, ylim=(-0.03, 1.05))
    axes[0].set_ylabel("share of images")
    legend_below(figure, axes[0])
    return figure


def ablations(rows: list[Row]) -> Any:
    """Bit accuracy clean and averaged over attacks, a panel a question."""
    if not rows:
        return None
    groups = distinct(rows, "group")
    figure, axes = grid(len(groups), 3, height=2.6, sharey=True)
    for axis, group in zip(axes, groups, strict=True):
        chosen = [row for row in rows if row["group"] == group]
        places = np.arange(len(chosen))
        for shift, (what, label) in enumerate(
            (("bit_accuracy", "clean"), ("mean_attacked", "mean of attacks"))
        ):
            heights = [row.get(what, 0) for row in chosen]
            axis.bar(places + 0.4 * shift, heights, 0.4, color=COLOURS[shift], label=label)
        ends = [f"{row['psnr']:.1f} dB" if "psnr" in row else "stopped" for row in chosen]
        names = [f"{row['answer']}\n{end}" for row, end in zip(chosen, ends, strict=True)]
        axis.set_xticks(places + 0.2, names, fontsize=9)
        axis.set(title=group, ylim=(0.4, 1.02))
        chance_line(axis)
    axes[0].set_ylabel("bit accuracy")
    legend_below(figure, axes[0])
    return figure
