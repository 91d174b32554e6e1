"""Rows as people read them: names of columns, values of cells."""

from __future__ import annotations

from typing import Any

from diffmark.evaluation.rows import Row

LABELS = {
    "ber_std": "BER, deviation",
    "ber_q5": "BER, 5% of images below",
    "ber_q50": "BER, median",
    "ber_q95": "BER, 95% of images below",
    "auc": "AUC",
    "ssimulacra2": "SSIMULACRA2",
    "butteraugli": "Butteraugli, 3-norm",
    "flip": "FLIP",
    "blockiness_unmarked": "the same, unmarked  ",
    "tpr_0.01": "TPR at FPR 1%, exact",
    "tpr_1e-06": "TPR at FPR 1e-6, exact",
    "psnr": "PSNR, dB",
    "psnr_of_attack": "PSNR of what the attack does, dB",
    "psnr_min": "PSNR, least",
    "ssim": "SSIM",
    "ms_ssim": "MS-SSIM",
    "distance": "perceptual distance",
    "distance_network": "its network",
    "frechet": "Frechet distance to scenes",
    "frechet_unmarked": "the same, unmarked",
    "frechet_network": "features of both",
    "alignment": "prompt alignment",
    "alignment_unmarked": "the same, unmarked ",
    "tpr": "TPR at FPR 0.1%, exact",
    "tpr_empirical": "TPR at FPR 1%, empirical",
    "tpr_0.01_empirical": "TPR at FPR 1%, empirical",
    "tpr_0.001_empirical": "TPR at FPR 0.1%, empirical",
    "tpr_0.01_exact": "TPR at FPR 1%, exact",
    "tpr_0.001_exact": "TPR at FPR 0.1%, exact",
    "tpr_1e-06_exact": "TPR at FPR 1e-6, exact",
    "fpr_0.01": "taken for marked at 1%",
    "fpr_0.001": "at 0.1%",
    "fpr_1e-06": "at 1e-6",
    "largest_lean": "most leaning bit",
    "lean_chance": "by chance up to",
    "correlation_chance": "by chance up to ",
    "seen": "images seen",
    "ratio": "times the first method",
}


def label(name: str) -> str:
    """The head of a column."""
    return LABELS.get(name, name.replace("_", " "))


def columns_of(rows: list[Row]) -> list[str]:
    """Columns that fit into a table: no lists, no pictures, nothing that is empty everywhere."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _fits(value))
    return list(names)


def spread(row: Row) -> Row:
    """A row whose groups of numbers (stages of reading) are columns of their own."""
    flat: Row = {}
    for name, value in row.items():
        if (
            isinstance(value, dict)
            and all(isinstance(item, float) for item in value.values())
            and not _fits(value)
        ):
            flat |= {f"{name}: {key}": item for key, item in value.items()}
        else:
            flat[name] = value
    return flat


def shown(value: Any) -> str:
    """A value as a reader wants it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        passed = f" (unmarked {value['observed_fpr']:.2%})" if "observed_fpr" in value else ""
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]{passed}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _fits(value: Any) -> bool:
    return "low" in value if isinstance(value, dict) else value is not None and not isinstance(value, list)
