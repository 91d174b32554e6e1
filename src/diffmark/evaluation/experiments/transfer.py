"""Transfer: models of the family that the codec never saw, clean and attacked (the transfer figures)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from PIL import Image

from diffmark.attacks import ATTACKS
from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, quality_figures, share
from diffmark.statistics import match_threshold

RATE = 1e-3


def transfer(lab: Lab) -> Iterator[Row]:
    """Each model of the family, clean and under each distortion at every strength; no codec was trained for it."""
    orders = lab.orders(lab.extent.siblings)
    for method in (method for method in lab.methods if isinstance(method, DiffMark)):
        threshold = match_threshold(method.bits, RATE)
        for model, studio in {lab.studio.model: lab.studio, **lab.siblings}.items():
            run = studio.sampling
            sampling = replace(method.sampling, steps=run.steps, guidance=run.guidance)
            moved = DiffMark(studio.pipe, method.detector, sampling, method.injection)
            distortions = [attack for attack in ATTACKS.values() if attack.kind == "distortion"]
            cases = [(attack, strength) for attack in distortions for strength in lab.extent.strengths]
            for attack, strength in ((None, 0.0), *cases):
                reading, _ = lab.reading(moved, orders, attack, strength, studio)
                row: Row = {"method": method.name, "model": model, "attack": attack.name if attack else None}
                row |= {"strength": strength} | bit_figures(reading.margins, reading.secrets)
                row["tpr"] = share(reading.scores >= threshold)
                if attack is None:
                    row |= _quality(lab, lab.plain(orders, studio), lab.marked(moved, orders, studio))
                yield row


def _quality(lab: Lab, plain: list[Image.Image], marked: list[Image.Image]) -> Row:
    return lab.meter.do("compare pictures", len(plain), lambda: quality_figures(plain, marked), lambda: {})
