"""The scene classifier: which attributes a picture shows. For prompt alignment and Frechet features."""

from collections.abc import Sequence

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from diffmark.vista.scenes import CELESTIALS, GROUNDS, OBJECTS, TERRAINS, TIMES, WEATHERS, Scene

CHOICES = {
    "time": TIMES,
    "weather": WEATHERS,
    "terrain": TERRAINS,
    "ground": GROUNDS,
    "celestial": CELESTIALS,
}
"""Attributes with one value a scene; the objects are yes or no each."""


class SceneClassifier(ModelMixin, ConfigMixin):
    """A small convolutional network with one head an attribute. Images are (B, 3, 256, 256) in [-1, 1]."""

    @register_to_config
    def __init__(self, channels: tuple[int, ...] = (32, 64, 96, 128)) -> None:
        super().__init__()
        # Half the size is enough to tell the attributes, and takes a quarter of the time.
        layers: list[nn.Module] = [nn.AvgPool2d(2), nn.PixelUnshuffle(2), nn.Conv2d(12, channels[0], 1)]
        for i, (before, after) in enumerate(zip((channels[0], *channels), channels, strict=False)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1, stride=1 if i == 0 else 2, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            ]
        self.trunk = nn.Sequential(*layers)
        outputs = sum(len(choices) for choices in CHOICES.values()) + len(OBJECTS)
        self.head = nn.Linear(channels[-1] * 2, outputs)

    def features(self, images: Tensor) -> Tensor:
        """Mean and maximum of the last layer over the picture, (B, 2 C)."""
        x = self.trunk(images)
        return torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Logits (B, choices) of every attribute, and `objects` (B, 4), one logit each."""
        sizes = [*(len(choices) for choices in CHOICES.values()), len(OBJECTS)]
        parts = self.head(self.features(images)).split(sizes, dim=1)
        return dict(zip([*CHOICES, "objects"], parts, strict=True))


def targets(scenes: Sequence[Scene]) -> dict[str, Tensor]:
    """What the classifier should say: indices (B,) an attribute, and `objects` (B, 4) of 0 and 1."""
    found = {
        name: torch.tensor([choices.index(getattr(scene, name)) for scene in scenes])
        for name, choices in CHOICES.items()
    }
    found["objects"] = torch.tensor([[float(name in scene.objects) for name in OBJECTS] for scene in scenes])
    return found


def agreement(logits: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whether each attribute is right, (B,) booleans a name; every object has its own."""
    right = {name: logits[name].argmax(1) == wanted[name] for name in CHOICES}
    seen = (logits["objects"] > 0) == wanted["objects"].bool()
    return right | {name: seen[:, i] for i, name in enumerate(OBJECTS)}
