from __future__ import annotations

import numpy as np
import pytest
from conftest import _build, tiny_codec
from PIL import Image

from diffmark.baselines.classic import BlindWatermark, InvisibleWatermark
from diffmark.baselines.diffmark import DiffMark
from diffmark.detection.latent import Detector
from diffmark.latent.injection import Injection
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.mark.loading import load_pipeline


@pytest.fixture(scope="module")
def photo():
    """Smooth colours with some texture, 256 px: what block transforms were made for."""
    y, x = np.mgrid[0:256, 0:256] / 255
    texture = np.random.default_rng(0).normal(0, 6, (256, 256, 3))
    waves = np.stack([120 + 80 * np.sin(5 * x), 110 + 70 * y, 130 + 60 * np.cos(7 * y)], -1)
    return Image.fromarray((waves + texture).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("name", ["dwtDct", "dwtDctSvd", "rivaGan", "blindWatermark"])
def test_classic_methods_read_what_they_wrote(name, photo):
    method = BlindWatermark() if name == "blindWatermark" else InvisibleWatermark(name)
    assert (method.name, method.bits, method.generates) == (name, 32, False)
    secrets = np.random.default_rng(2).integers(0, 2, (2, 32)).astype(np.uint8)
    marked = [method.embed(photo, secret) for secret in secrets]
    assert marked[0].size == photo.size
    assert (method.score(marked, secrets) >= 25).all()  # dwtDct is the weakest: 26 to 32
    assert method.decode(marked).shape == (2, 32)
    assert (method.score([photo, photo], secrets) < 25).all()
    small = [photo.resize(size) for size in ((64, 64), (47, 63))]  # attacks make such pictures
    assert method.decode(small).shape == (2, 32)
    with pytest.raises(TypeError, match="use embed"):
        method.generate(ImageSpec("x", secrets[0], 0))


def test_unknown_algorithm():
    with pytest.raises(ValueError, match="not 'magic'"):
        InvisibleWatermark("magic")


def test_diffmark_is_a_method(model_folder, secret):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    detector = Detector(tiny_codec(), _build("sd").pipe.vae)
    method = DiffMark(pipe, detector, Sampling(steps=2))
    assert (method.name, method.bits, method.generates) == ("diffmark", 64, True)
    final = DiffMark(pipe, detector, Sampling(steps=2), Injection("final"))
    assert final.name == "diffmark-final"
    assert final.fingerprint() != method.fingerprint()
    assert final.reader() == method.reader()  # what is not marked reads the same
    image = method.generate(ImageSpec("a hill", secret, 1))
    margins = method.decode([image, image])
    assert margins.shape == (2, 64)
    expected = int(((margins[0] > 0) == secret).sum())
    assert method.score([image], secret[None]).tolist() == [expected]
    with pytest.raises(TypeError, match="use generate"):
        method.embed(image, secret)
