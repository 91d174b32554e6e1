"""Train the scene classifier on painted scenes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from diffmark.latent.pictures import from_levels
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.classifier import CHOICES, SceneClassifier, agreement, targets
from diffmark.vista.scenes import HELD_OUT, random_scene
from diffmark.vista.training.data import Picture, painted


@dataclass(frozen=True)
class ClassifierConfig:
    """A run of `diffmark vista train classifier`."""

    loop: LoopConfig
    scenes: int = 12000
    blur_share: float = 0.5  # of pictures that are softened, as pictures from a decoder are


class ClassifierJob:
    """Cross-entropy of every attribute."""

    def __init__(self, config: ClassifierConfig, scenes: Picture) -> None:
        torch.manual_seed(config.loop.seed)
        self.config, self.scenes = config, scenes
        self.model = SceneClassifier()

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        picked = np.sort(draws.numpy.integers(len(self.scenes), size=self.config.loop.batch))
        x = from_levels(self.scenes[picked])
        wanted = targets([random_scene(int(i)) for i in picked])
        if draws.numpy.random() < 0.5:
            x = x.flip(3)
        if draws.numpy.random() < self.config.blur_share:
            small = F.interpolate(x, scale_factor=float(draws.numpy.uniform(0.3, 0.8)), mode="area")
            x = F.interpolate(small, x.shape[2:], mode="bilinear")
        x = x + draws.numpy.uniform(0, 0.05) * torch.randn(x.shape, generator=draws.torch)
        logits = self.model(x)
        loss = sum((F.cross_entropy(logits[name], wanted[name]) for name in CHOICES), torch.zeros(()))
        loss = loss + 4 * F.binary_cross_entropy_with_logits(logits["objects"], wanted["objects"])
        right = torch.stack([value.float().mean() for value in agreement(logits, wanted).values()])
        return loss, {"accuracy": right.mean()}


def train_classifier(
    config: ClassifierConfig, folder: Path, stop_after: int | None = None
) -> SceneClassifier:
    """Train and save to `folder/model`."""
    job = ClassifierJob(config, painted(folder.parent / "cache", config.scenes))
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    classifier = job.model.eval()
    classifier.save_pretrained(folder / "model")
    return classifier


@torch.no_grad()
def evaluate_classifier(classifier: SceneClassifier, folder: Path, count: int = 1000) -> dict[str, float]:
    """Accuracy of each attribute on unseen scenes."""
    pictures, right = painted(folder, count, first_seed=HELD_OUT), []
    for start in range(0, count, 50):
        wanted = targets([random_scene(HELD_OUT + i) for i in range(start, min(start + 50, count))])
        right.append(agreement(classifier(from_levels(pictures[start : start + 50])), wanted))
    return {
        name: round(float(torch.cat([part[name] for part in right]).float().mean()), 4) for name in right[0]
    }
