"""Figures of merit, from images and from scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from diffmark.statistics import auc, clopper_pearson, tpr_at_fpr

RATES = (1e-2, 1e-3, 1e-6)


def psnr(image: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio in dB, infinite for equal images."""
    if image is other:
        return float("inf")
    error = np.mean((np.asarray(image, np.float64) - np.asarray(other, np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def ssim(image: Image.Image, other: Image.Image) -> float:
    """Structural similarity (11-pixel Gaussian window), 1 for equal images."""
    from pytorch_msssim import ssim as compute

    return float(compute(_tensor(image), _tensor(other), data_range=255))


def ms_ssim(image: Image.Image, other: Image.Image) -> float:
    """Multi-scale structural similarity over five scales; needs more than 160 pixels a side."""
    from pytorch_msssim import ms_ssim as compute

    if min(image.size) <= 160:
        raise ValueError(f"MS-SSIM needs images of more than 160 pixels a side, got {image.size}")
    return float(compute(_tensor(image), _tensor(other), data_range=255))


def blockiness(image: Image.Image, side: int = 8) -> float:
    """Mean step of luma across the grid of side x side blocks over its mean step elsewhere; 1 if unseen."""
    luma = np.asarray(image.convert("L"), np.float64)
    across, elsewhere = 0.0, 0.0
    for axis in (0, 1):
        steps = np.abs(np.diff(luma, axis=axis)).mean(1 - axis)
        on_grid = np.arange(1, len(steps) + 1) % side == 0
        across, elsewhere = across + steps[on_grid].mean(), elsewhere + steps[~on_grid].mean()
    return float(across / elsewhere) if elsewhere else 1.0


def frechet_distance(features: ArrayLike, others: ArrayLike) -> float:
    """Frechet distance of two sets of features, (N, D) each, under a Gaussian model.

    Call it FID only when the features are InceptionV3's; otherwise name the features.
    """
    a, b = np.asarray(features, np.float64), np.asarray(others, np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"features are (N, D) with one D and N of at least 2, got {a.shape} and {b.shape}")
    centred, other = a - a.mean(0), b - b.mean(0)
    # With C = R^T R the trace of the root of a product of covariances is the nuclear norm of R R'^T, which stays
    # defined where there are fewer images than dimensions.
    root: Any = np.linalg.qr(centred, mode="r")
    other_root: Any = np.linalg.qr(other, mode="r")
    cross = np.linalg.svd(root @ other_root.T, compute_uv=False).sum() / np.sqrt((len(a) - 1) * (len(b) - 1))
    spread = (centred**2).sum() / (len(a) - 1) + (other**2).sum() / (len(b) - 1)
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + spread - 2 * cross)


def bit_figures(margins: NDArray[np.float64], secrets: NDArray[np.uint8]) -> dict[str, Any]:
    """Accuracy of bits, and the distribution of the bit error rate over images; both (B, L)."""
    errors = ((margins > 0) != secrets).mean(axis=1)
    quantiles = np.quantile(errors, [0.05, 0.5, 0.95])
    return {
        "images": len(errors),
        "bit_accuracy": float(1 - errors.mean()),
        "ber_std": float(errors.std()),
        **{f"ber_q{q}": float(value) for q, value in zip((5, 50, 95), quantiles, strict=True)},
    }


def detection_figures(
    positives: ArrayLike,
    negatives: ArrayLike,
    p_values: tuple[ArrayLike, ArrayLike] | None = None,
    least_p: float = 0.0,
) -> dict[str, Any]:
    """TPR at each of RATES with intervals, at the empirical threshold of `negatives` and at the exact one.

    Both are scores; exact figures are of the p-values of both, where theory tells them. A rate is left out where
    the negatives are too few for an empirical threshold (fewer than 10 / rate), or no p-value can be as small.
    """
    marked, unmarked = np.asarray(positives, np.float64), np.asarray(negatives, np.float64)
    figures: dict[str, Any] = {"negatives": len(unmarked), "auc": auc(marked, unmarked)}
    for rate in RATES:
        if len(unmarked) >= 10 / rate:
            figures[f"tpr_{rate:g}_empirical"] = asdict(tpr_at_fpr(marked, unmarked, rate))
        if p_values is not None and least_p <= rate:
            passed, passed_unmarked = (np.asarray(p, np.float64) <= rate for p in p_values)
            figures[f"tpr_{rate:g}_exact"] = share(passed) | {"observed_fpr": float(passed_unmarked.mean())}
    return figures


def share(found: ArrayLike) -> dict[str, float]:
    """How many of some yes-or-no outcomes are yes, with the exact 95% interval."""
    hits, trials = int(np.sum(found)), int(np.size(found))
    low, high = clopper_pearson(hits, trials)
    return {"value": hits / trials, "low": low, "high": high}


def bias_figures(margins: NDArray[np.float64]) -> dict[str, float]:
    """How far the bits of unmarked images, (N, L), are from fair and independent coins.

    A bit's lean is the distance of its mean from one half. `lean_chance` is what the largest of L fair ones would
    show in N images, `correlation_chance` the largest correlation of all pairs of independent ones (both 95%).
    """
    from scipy.stats import norm

    bits = (margins > 0).astype(np.float64)
    count, length = bits.shape
    leans = np.abs(bits.mean(axis=0) - 0.5)
    varying = bits[:, bits.std(axis=0) > 0]
    pairs = (
        np.abs(np.triu(np.corrcoef(varying, rowvar=False), 1)) if varying.shape[1] > 1 else np.ones((1, 1))
    )

    def largest(tests: int) -> float:
        return float(norm.isf(0.025 / tests) / np.sqrt(count))

    return {
        "largest_lean": float(leans.max()),
        "mean_lean": float(leans.mean()),
        "lean_chance": largest(length) / 2,
        "largest_correlation": float(pairs.max()),
        "correlation_chance": largest(length * (length - 1) // 2 or 1),
    }


def quality_figures(plain: Sequence[Image.Image], marked: Sequence[Image.Image]) -> dict[str, float]:
    """PSNR, SSIM and MS-SSIM of pairs with the same prompt and seed."""
    pairs = list(zip(plain, marked, strict=True))
    values = np.array([psnr(a, b) for a, b in pairs])
    figures = {"psnr": float(values.mean()), "psnr_min": float(values.min())}
    figures["ssim"] = float(np.mean([ssim(a, b) for a, b in pairs]))
    if min(min(image.size) for image in plain) > 160:
        figures["ms_ssim"] = float(np.mean([ms_ssim(a, b) for a, b in pairs]))
    return figures


def _tensor(image: Image.Image) -> Any:
    import torch

    return torch.from_numpy(np.asarray(image.convert("RGB"), np.float32)).permute(2, 0, 1)[None]
