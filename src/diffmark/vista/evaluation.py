"""How good a Vista model is: does the picture show what the prompt says, and are pictures like scenes."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from diffmark.latent.pictures import from_levels
from diffmark.metrics import frechet_distance
from diffmark.statistics import clopper_pearson
from diffmark.vista.classifier import SceneClassifier, agreement, targets
from diffmark.vista.paint import paint
from diffmark.vista.scenes import OBJECTS, Scene, random_scene
from diffmark.vista.training.data import Picture


def generate(
    pipeline: Any, prompts: Sequence[str], steps: int, guidance: float, batch: int = 8, seed: int = 0
) -> Iterator[Picture]:
    """A picture (256, 256, 3) for every prompt, `batch` at a time; picture i has the seed `seed` + i."""
    pipeline.set_progress_bar_config(disable=True)
    for start in tqdm(range(0, len(prompts), batch), desc="generating", disable=None):
        part = list(prompts[start : start + batch])
        generators = [torch.Generator().manual_seed(seed + start + i) for i in range(len(part))]
        images = pipeline(
            part, num_inference_steps=steps, guidance_scale=guidance, generator=generators, output_type="np"
        ).images
        yield from (images * 255).round().astype(np.uint8)


def seconds_per_image(pipeline: Any, prompt: str, steps: int, guidance: float, times: int = 3) -> float:
    """The median time of one picture, at a batch of one."""
    list(generate(pipeline, [prompt], 1, guidance))  # the first call of a pipeline is slower
    taken = []
    for seed in range(times):
        start = time.perf_counter()
        list(generate(pipeline, [prompt], steps, guidance, seed=seed))
        taken.append(time.perf_counter() - start)
    return round(float(np.median(taken)), 2)


@torch.no_grad()
def evaluate_pictures(
    pictures: Sequence[Picture], scenes: Sequence[Scene], classifier: SceneClassifier
) -> dict[str, Any]:
    """How often each attribute is as the scene says, with a 95% interval; Frechet distance to the scenes.

    The floor is the distance between two disjoint sets of held-out scenes of the same size. `called` and
    `uncalled` split each object: how often it is seen where the prompt names it and where it does not.
    """
    logits, features = _seen(classifier, pictures)
    wanted = targets(scenes)
    scores: dict[str, Any] = {"alignment": {}, "called": {}, "uncalled": {}}
    for name, right in agreement(logits, wanted).items():
        interval = clopper_pearson(int(right.sum()), len(right))
        scores["alignment"][name] = {"rate": _rounded(right), "interval": [round(x, 4) for x in interval]}
    for i, name in enumerate(OBJECTS):
        called, seen = wanted["objects"][:, i].bool(), logits["objects"][:, i] > 0
        scores["called"][name], scores["uncalled"][name] = _rounded(seen[called]), _rounded(seen[~called])
    painted = _seen(classifier, [paint(scene) for scene in tqdm(scenes, "painting", disable=None)])[1]
    others = [paint(random_scene(scene.seed + len(scenes))) for scene in scenes]
    scores["frechet"] = round(frechet_distance(features, painted), 4)
    scores["frechet_floor"] = round(frechet_distance(_seen(classifier, others)[1], painted), 4)
    return scores


def _seen(
    classifier: SceneClassifier, pictures: Sequence[Picture]
) -> tuple[dict[str, Tensor], NDArray[np.float64]]:
    """The classifier's logits and features (n, d) of pictures."""
    logits: dict[str, list[Tensor]] = {}
    features = []
    for start in range(0, len(pictures), 16):
        images = from_levels(np.stack(pictures[start : start + 16]))
        for name, values in classifier(images).items():
            logits.setdefault(name, []).append(values)
        features.append(classifier.features(images))
    return {name: torch.cat(parts) for name, parts in logits.items()}, torch.cat(features).double().numpy()


def _rounded(right: Tensor) -> float | None:
    return round(float(right.float().mean()), 4) if len(right) else None


def contact_sheet(images: Sequence[Picture], columns: int = 6) -> Picture:
    """Pictures (h, w, 3) of one size in rows; the last row is filled up with white."""
    blank = np.full_like(images[0], 255)
    rows = [list(images[start : start + columns]) for start in range(0, len(images), columns)]
    rows[-1] += [blank] * (columns - len(rows[-1]))
    return np.concatenate([np.concatenate(row, 1) for row in rows], 0)
