"""What a mark does to pictures as a network sees them; kept, as it takes time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.evaluation.cache import Recipe
from diffmark.evaluation.harness import Harness, Row, specs_digest
from diffmark.evaluation.image_model import scene_of
from diffmark.evaluation.visibility import visibility_figures
from diffmark.mark.generation import ImageSpec
from diffmark.mark.loading import is_embedded
from diffmark.metrics import blockiness, frechet_distance, quality_figures
from diffmark.vista.paint import PAINTER


def quality(harness: Harness, method: Method, specs: Sequence[ImageSpec]) -> Row:
    """Marked pictures against the same seeds without a mark, and both against painted scenes.

    SSIMULACRA2, Butteraugli, FLIP, PSNR, SSIM, MS-SSIM; blockiness of both on the grid of 8 pixels; the perceptual
    distance with its network; the Frechet distance of marked and of unmarked pictures to as many painted scenes;
    how many attributes of the prompt the scene classifier finds in them.
    """
    recipe: Recipe = {
        "quality": harness.identity(method)[0],
        "measures": 2,  # raised when one is added
        "model": harness.model.digest,
        "specs": [o.seed for o in specs],
    }
    recipe |= {"backbone": harness.backbone.weights, "classifier": harness.scene_features.weights}
    recipe |= {"asked": specs_digest(specs), "painter": PAINTER}
    recipe |= {"sampling": [harness.model.sampling.steps, harness.model.sampling.guidance]}

    if harness.out_of_time and not harness.cache.has(recipe, "npz"):
        return {}

    def make() -> dict[str, NDArray[np.float64]]:
        plain, marked = harness.plain(specs), harness.marked(method, specs)
        painted = harness.scenes(len(specs), first=len(specs))
        figures = harness.timer.do(
            "compare pictures",
            len(specs),
            lambda: _compared(harness, specs, plain, marked, painted),
            lambda: {},
        )
        return {name: np.array(value) for name, value in figures.items()}

    kept = harness.cache.remember(recipe, make)
    row: Row = {name: float(value) for name, value in kept.items()}
    return row | {"distance_network": harness.backbone.name, "frechet_network": harness.scene_features.name}


def _compared(
    harness: Harness,
    specs: Sequence[ImageSpec],
    plain: list[Image.Image],
    marked: list[Image.Image],
    painted: list[Image.Image],
) -> dict[str, float]:
    figures = visibility_figures(plain, marked) | quality_figures(plain, marked)
    figures["blockiness"] = float(np.mean([blockiness(image) for image in marked]))
    figures["blockiness_unmarked"] = float(np.mean([blockiness(image) for image in plain]))
    figures["distance"] = float(harness.backbone.distances(plain, marked).mean())
    features = {
        name: harness.scene_features.vectors(images).double().numpy()
        for name, images in (("marked", marked), ("plain", plain), ("painted", painted))
    }
    figures["frechet"] = frechet_distance(features["marked"], features["painted"])
    figures["frechet_unmarked"] = frechet_distance(features["plain"], features["painted"])
    if is_embedded(harness.model.name):  # the classifier knows its scenes
        figures["alignment"] = alignment(specs, marked)
        figures["alignment_unmarked"] = alignment(specs, plain)
    return figures


def alignment(specs: Sequence[ImageSpec], images: Sequence[Image.Image]) -> float:
    """Share of the prompt's attributes that the scene classifier finds in the pictures."""
    import torch

    from diffmark.images import read_image
    from diffmark.vista import load_classifier
    from diffmark.vista.classifier import agreement, targets

    classifier, right = load_classifier(), []
    for spec, image in zip(specs, images, strict=True):
        with torch.no_grad():
            logits = classifier(torch.from_numpy(read_image(image).pixels())[None])
        found = agreement(logits, targets([scene_of(spec)]))
        right.append(float(torch.stack(list(found.values())).float().mean()))
    return float(np.mean(right))
