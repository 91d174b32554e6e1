"""Transfer: models of the family that the codec never saw, clean and attacked (the transfer figures)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from PIL import Image

from diffmark.attacks import ATTACKS
from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.harness import Harness, Row
from diffmark.metrics import bit_figures, quality_figures, share
from diffmark.statistics import match_threshold

RATE = 1e-3


def transfer(harness: Harness) -> Iterator[Row]:
    """Each model of the family, clean and under each distortion at every strength; no codec was trained for it."""
    specs = harness.specs(harness.extent.siblings)
    for method in (method for method in harness.methods if isinstance(method, DiffMark)):
        threshold = match_threshold(method.bits, RATE)
        for name, model in {harness.model.name: harness.model, **harness.siblings}.items():
            run = model.sampling
            sampling = replace(method.sampling, steps=run.steps, guidance=run.guidance)
            moved = DiffMark(model.pipe, method.detector, sampling, method.injection)
            distortions = [attack for attack in ATTACKS.values() if attack.kind == "distortion"]
            cases = [(attack, strength) for attack in distortions for strength in harness.extent.strengths]
            for attack, strength in ((None, 0.0), *cases):
                reading, _ = harness.reading(moved, specs, attack, strength, model)
                row: Row = {"method": method.name, "model": name, "attack": attack.name if attack else None}
                row |= {"strength": strength} | bit_figures(reading.margins, reading.secrets)
                row["tpr"] = share(reading.scores >= threshold)
                if attack is None:
                    row |= _quality(harness, harness.plain(specs, model), harness.marked(moved, specs, model))
                yield row


def _quality(harness: Harness, plain: list[Image.Image], marked: list[Image.Image]) -> Row:
    return harness.timer.do(
        "compare pictures", len(plain), lambda: quality_figures(plain, marked), lambda: {}
    )
