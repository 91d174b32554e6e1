"""What a mark does to pictures as a network sees them; kept, as it takes time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.evaluation.lab import Lab, Row, orders_digest
from diffmark.evaluation.memory import Recipe
from diffmark.evaluation.metrics import frechet_distance, quality_figures
from diffmark.evaluation.studio import scene_of
from diffmark.mark.generation import Order
from diffmark.mark.loading import is_embedded
from diffmark.vista.paint import PAINTER


def quality(lab: Lab, method: Method, orders: Sequence[Order]) -> Row:
    """Marked pictures against the same seeds without a mark, and both against painted scenes.

    PSNR, SSIM, MS-SSIM; the perceptual distance with its network; the Frechet distance of marked and of unmarked
    pictures to as many painted scenes; how many attributes of the prompt the scene classifier finds in them.
    """
    recipe: Recipe = {
        "quality": method.fingerprint(),
        "model": lab.studio.digest,
        "orders": [o.seed for o in orders],
    }
    recipe |= {"backbone": lab.backbone.weights, "classifier": lab.scene_features.weights}
    recipe |= {"asked": orders_digest(orders), "painter": PAINTER}
    recipe |= {"sampling": [lab.studio.sampling.steps, lab.studio.sampling.guidance]}

    def make() -> dict[str, NDArray[np.float64]]:
        plain, marked = lab.plain(orders), lab.marked(method, orders)
        painted = lab.scenes(len(orders), first=len(orders))
        figures = lab.meter.do(
            "compare pictures",
            len(orders),
            lambda: _compared(lab, orders, plain, marked, painted),
            lambda: {},
        )
        return {name: np.array(value) for name, value in figures.items()}

    kept = lab.memory.remember(recipe, make)
    row: Row = {name: float(value) for name, value in kept.items()}
    return row | {"distance_network": lab.backbone.name, "frechet_network": lab.scene_features.name}


def _compared(
    lab: Lab,
    orders: Sequence[Order],
    plain: list[Image.Image],
    marked: list[Image.Image],
    painted: list[Image.Image],
) -> dict[str, float]:
    figures = quality_figures(plain, marked)
    figures["distance"] = float(lab.backbone.distances(plain, marked).mean())
    features = {
        name: lab.scene_features.vectors(images).double().numpy()
        for name, images in (("marked", marked), ("plain", plain), ("painted", painted))
    }
    figures["frechet"] = frechet_distance(features["marked"], features["painted"])
    figures["frechet_unmarked"] = frechet_distance(features["plain"], features["painted"])
    if is_embedded(lab.studio.model):  # the classifier knows its scenes
        figures["alignment"] = alignment(orders, marked)
        figures["alignment_unmarked"] = alignment(orders, plain)
    return figures


def alignment(orders: Sequence[Order], images: Sequence[Image.Image]) -> float:
    """Share of the prompt's attributes that the scene classifier finds in the pictures."""
    import torch

    from diffmark.images import read_image
    from diffmark.vista import load_classifier
    from diffmark.vista.classifier import agreement, targets

    classifier, right = load_classifier(), []
    for order, image in zip(orders, images, strict=True):
        with torch.no_grad():
            logits = classifier(torch.from_numpy(read_image(image).pixels())[None])
        found = agreement(logits, targets([scene_of(order)]))
        right.append(float(torch.stack(list(found.values())).float().mean()))
    return float(np.mean(right))
