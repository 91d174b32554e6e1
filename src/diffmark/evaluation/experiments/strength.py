"""The strength curve: what is paid in PSNR for what accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from diffmark.attacks import ATTACKS
from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.harness import Harness, Row
from diffmark.metrics import bit_figures, psnr

STRENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
CASES = {"clean": None, "JPEG 50": ("jpeg", 0.5), "noise 0.05": ("noise", 0.5)}


def strength(harness: Harness) -> Iterator[Row]:
    """Bit accuracy against same-seed PSNR when delta is scaled."""
    for method in (method for method in harness.methods if isinstance(method, DiffMark)):
        specs = harness.specs(harness.extent.costly_attacked if method.repaints else harness.extent.attacked)
        for factor in STRENGTHS:
            sampling = replace(method.sampling, strength=factor)
            scaled = DiffMark(harness.model.pipe, method.detector, sampling, method.injection)
            pairs = zip(harness.plain(specs), harness.marked(scaled, specs), strict=True)
            row: Row = {"method": method.name, "delta_times": factor}
            row["psnr"] = float(np.mean([psnr(plain, marked) for plain, marked in pairs]))
            for case, attack in CASES.items():
                name, hardness = attack or (None, 0.0)
                reading, _ = harness.reading(scaled, specs, ATTACKS[name] if name else None, hardness)
                yield row | {"case": case} | bit_figures(reading.margins, reading.secrets)
