"""Clean detection and quality (the paper's main comparison table)."""

from __future__ import annotations

from collections.abc import Iterator

from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, detection_figures, quality_figures


def clean(lab: Lab) -> Iterator[Row]:
    """A row a method: bits, true-positive rates, PSNR and SSIM against the same seed without a mark."""
    count = lab.extent.marked
    for method in lab.methods:
        images, secrets = lab.marked(method, count), lab.secrets(method, count)
        row: Row = {"method": method.name, "bits": method.bits}
        if method.bits:
            row |= bit_figures(method.decode(images), secrets)
        row |= detection_figures(method.score(images, secrets), lab.negative_scores(method), method.bits)
        row |= quality_figures(lab.plain(count), images)
        yield row
