"""Attacks that use a model: regeneration by a surrogate, projected gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import _build
from PIL import Image

from diffmark.attacks.adversarial import adversarial_attacks
from diffmark.attacks.regeneration import regeneration_attacks
from diffmark.images import read_image
from diffmark.pipelines import load_pipeline
from diffmark.vae import encode


@pytest.fixture(scope="module")
def image():
    return Image.fromarray(np.random.default_rng(0).integers(30, 220, (64, 64, 3)).astype(np.uint8))


def test_regeneration_is_seeded_and_counts_its_rounds(model_folder, image):
    pipe = load_pipeline(str(model_folder))
    calls = []
    forward = pipe.unet.forward
    pipe.unet.forward = lambda *arguments, **options: (
        calls.append(arguments[1]) or forward(*arguments, **options)
    )
    once, twice = regeneration_attacks(pipe)
    assert (once.value(0), once.value(1), twice.value(1)) == (40, 200, 100)
    first = np.asarray(once(image, 1.0, seed=4))
    assert calls == [200, 180, 160, 140, 120, 100, 80, 60, 40, 20]
    assert np.array_equal(first, np.asarray(once(image, 1.0, seed=4)))
    assert not np.array_equal(first, np.asarray(once(image, 1.0, seed=5)))
    calls.clear()
    twice(image, 1.0)
    assert calls == [100, 80, 60, 40, 20] * 2


def test_projected_gradients_stay_in_the_ball_and_move_the_features(image):
    torch.manual_seed(0)
    vae = _build("sd").pipe.vae
    probe = torch.nn.Conv2d(3, 4, 5, stride=4)
    pixels = np.asarray(image, float)

    def latents(picture):
        with torch.no_grad():
            return encode(vae, torch.from_numpy(read_image(picture).pixels())[None])

    for attack in adversarial_attacks(vae, probe, steps=12):
        mild, harsh = attack(image, 0.0), attack(image, 1.0)
        assert np.abs(np.asarray(mild, float) - pixels).max() <= 2
        assert 6 <= np.abs(np.asarray(harsh, float) - pixels).max() <= 8
        noisy = np.clip(pixels + np.random.default_rng(0).choice([-8, 8], pixels.shape), 0, 255).astype(
            np.uint8
        )
        if attack.name == "adv_vae":
            moved = (latents(harsh) - latents(image)).norm()
            assert moved > 1.2 * (latents(Image.fromarray(noisy)) - latents(image)).norm()
    assert len(adversarial_attacks(vae)) == 1
