"""How good a Vista model is: does the picture show what the prompt says, and are pictures like scenes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg
from torch import Tensor
from tqdm import tqdm

from diffmark.vista.classifier import SceneClassifier, agreement, targets
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, Scene, caption, random_scene


def generate(
    pipeline: Any, prompts: Sequence[str], steps: int, guidance: float, batch: int = 8, seed: int = 0
) -> Iterator[Tensor]:
    """Pictures (b, 3, 256, 256) in [-1, 1] for the prompts, `batch` at a time; one generator a picture."""
    pipeline.set_progress_bar_config(disable=True)
    for start in tqdm(range(0, len(prompts), batch), desc="generating", disable=None):
        part = list(prompts[start : start + batch])
        generators = [torch.Generator().manual_seed(seed + start + i) for i in range(len(part))]
        images = pipeline(
            part, num_inference_steps=steps, guidance_scale=guidance, generator=generators, output_type="pt"
        ).images
        yield images * 2 - 1


def frechet_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Frechet distance of two sets of features (n, d), each taken as a Gaussian."""
    covariance_a, covariance_b = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = linalg.sqrtm(covariance_a @ covariance_b)
    trace = np.trace(covariance_a + covariance_b - 2 * np.real(root))
    return float(((a.mean(0) - b.mean(0)) ** 2).sum() + trace)


@torch.no_grad()
def evaluate_pipeline(
    pipeline: Any,
    classifier: SceneClassifier,
    count: int = 1000,
    steps: int = 50,
    guidance: float = 3.0,
    seed: int = 0,
) -> dict[str, float]:
    """Alignment of every attribute on unseen prompts; Frechet distance to held-out scenes, and its floor.

    The floor is the distance between two disjoint sets of held-out scenes of the same size.
    """
    scenes = [random_scene(HELD_OUT + i) for i in range(count)]
    right: dict[str, list[Tensor]] = {}
    made = []
    position = 0
    for images in generate(pipeline, [caption(scene) for scene in scenes], steps, guidance, seed=seed):
        wanted = targets(scenes[position : position + len(images)])
        position += len(images)
        for name, value in agreement(classifier(images), wanted).items():
            right.setdefault(name, []).append(value)
        made.append(classifier.features(images))
    scores = {name: float(torch.cat(parts).float().mean()) for name, parts in right.items()}
    features = torch.cat(made).double().numpy()
    painted = _features(classifier, scenes)
    others = _features(classifier, [random_scene(HELD_OUT + count + i) for i in range(count)])
    scores["frechet"] = frechet_distance(features, painted)
    scores["frechet_floor"] = frechet_distance(others, painted)
    return {name: round(value, 4) for name, value in scores.items()}


def _features(classifier: SceneClassifier, scenes: list[Scene]) -> NDArray[np.float64]:
    parts = []
    for start in tqdm(range(0, len(scenes), 16), desc="painting", disable=None):
        pictures = np.stack([paint(scene) for scene in scenes[start : start + 16]])
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
        parts.append(classifier.features(images))
    return torch.cat(parts).double().numpy()


def contact_sheet(images: Sequence[NDArray[np.uint8]], columns: int = 6) -> NDArray[np.uint8]:
    """Pictures (h, w, 3) of one size in rows; the last row is filled up with white."""
    blank = np.full_like(images[0], 255)
    rows = [list(images[start : start + columns]) for start in range(0, len(images), columns)]
    rows[-1] += [blank] * (columns - len(rows[-1]))
    return np.concatenate([np.concatenate(row, 1) for row in rows], 0)
