"""Transfer: models of the family that the codec never saw, clean and attacked (the transfer figures)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diffmark.attacks import ATTACKS
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, quality_figures
from diffmark.methods.diffmark import DiffMark

STRENGTH = 0.5


def transfer(lab: Lab) -> Iterator[Row]:
    """A row a model for clean images, and one for each distortion at half strength."""
    from diffmark.pipelines import load_pipeline
    from diffmark.vista import model_names

    count = lab.extent.attacked
    for method in (method for method in lab.methods if isinstance(method, DiffMark)):
        for model in model_names():
            pipe = load_pipeline(model)
            pipe.set_progress_bar_config(disable=True)
            there = replace(lab, studio=replace(lab.studio, pipe=pipe, model=model))
            moved = method.on(pipe)
            images, secrets = there.marked(moved, count), there.secrets(moved, count)
            row: Row = {"method": method.name, "model": model, "attack": None}
            yield (
                row | bit_figures(moved.decode(images), secrets) | quality_figures(there.plain(count), images)
            )
            for attack in (attack for attack in ATTACKS.values() if attack.kind == "distortion"):
                margins = moved.decode(attack.on_all(images, STRENGTH))
                yield row | {"attack": attack.name, "strength": STRENGTH} | bit_figures(margins, secrets)
