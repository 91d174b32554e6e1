"""Attacks that use a model: regeneration by a surrogate, projected gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import _build
from PIL import Image

from diffmark.attacks.adversarial import against_features, against_vae
from diffmark.attacks.regeneration import Compression, compression_attack, diffusion_attacks
from diffmark.evaluation.backbones import scene_classifier
from diffmark.images import read_image
from diffmark.latent.vae import encode
from diffmark.mark.loading import load_pipeline
from diffmark.metrics import psnr
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene


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
    once, twice, often = diffusion_attacks(pipe, "tiny")
    assert once.by == "tiny"
    assert (once.value(0), once.value(1), twice.value(1)) == (40, 200, 100)
    first = np.asarray(once(image, 1.0, seed=4))
    assert calls == [200, 180, 160, 140, 120, 100, 80, 60, 40, 20]
    assert np.array_equal(first, np.asarray(once(image, 1.0, seed=4)))
    assert not np.array_equal(first, np.asarray(once(image, 1.0, seed=5)))
    calls.clear()
    twice(image, 1.0)
    assert calls == [100, 80, 60, 40, 20] * 2
    calls.clear()
    often(image, 1.0)
    assert calls == [100, 80, 60, 40, 20] * 4


def test_projected_gradients_stay_in_the_ball_and_move_the_features(image):
    torch.manual_seed(0)
    vae = _build("sd").pipe.vae
    probe = torch.nn.Conv2d(3, 4, 5, stride=4)
    pixels = np.asarray(image, float)

    def latents(picture):
        with torch.no_grad():
            return encode(vae, torch.from_numpy(read_image(picture).pixels())[None])

    for attack in (against_vae(vae, 12), against_features(probe, "a probe", "", 12)):
        mild, harsh = attack(image, 0.0), attack(image, 1.0)
        assert np.abs(np.asarray(mild, float) - pixels).max() <= 2
        change = np.abs(np.asarray(harsh, float) - pixels)[(pixels >= 8) & (pixels <= 247)]
        assert change.max() == 8
        assert (change == 8).mean() > 0.1  # many run into the bound
        noisy = np.clip(pixels + np.random.default_rng(0).choice([-8, 8], pixels.shape), 0, 255).astype(
            np.uint8
        )
        if attack.name == "adv_vae":
            moved = (latents(harsh) - latents(image)).norm()
            assert moved > 1.2 * (latents(Image.fromarray(noisy)) - latents(image)).norm()


def test_a_batch_is_attacked_like_its_images_one_by_one(model_folder, image):
    """Each image has its own noise; only the order of sums may differ."""
    other = Image.fromarray(255 - np.asarray(image))
    torch.manual_seed(0)
    attacks = [diffusion_attacks(load_pipeline(str(model_folder)), "tiny")[0]]
    attacks.append(against_features(torch.nn.Conv2d(3, 4, 5, stride=4), "a probe", "", 5))
    for attack in attacks:
        together = attack.on_all([image, other], 0.5, base_seed=3)
        alone = [attack(image, 0.5, seed=3), attack(other, 0.5, seed=4)]
        for a, b in zip(together, alone, strict=True):
            assert (np.asarray(a) != np.asarray(b)).mean() < 0.02
    odd = [image, image.resize((32, 32))]  # no batch of two sizes
    assert [x.size for x in attacks[1].on_all(odd, 0.0)] == [(64, 64), (32, 32)]


def test_compression_is_named_and_harsher_with_strength():
    attack = compression_attack()
    assert attack.name == "regen_vae"
    assert (attack.value(0), attack.value(1)) == (7, 1)
    assert attack.by in ("Vista's compression autoencoder", "CompressAI bmshj2018-factorized (mse)")
    picture = Image.fromarray(np.asarray(paint(random_scene(HELD_OUT)))).crop((0, 0, 130, 100))
    mild, harsh = attack(picture, 0.0), attack(picture, 1.0)
    assert mild.size == picture.size  # sides that are no multiple of 16
    assert psnr(picture, mild) > psnr(picture, harsh) + 1
    assert psnr(picture, harsh) > 20


def test_compression_cuts_what_it_padded(image):
    through = Compression(lambda pixels, quality: pixels, "nothing", "", 48)
    assert np.array_equal(np.asarray(through(image, 1.0, np.random.default_rng(0))), np.asarray(image))


def test_features_of_a_named_classifier_can_be_attacked():
    backbone = scene_classifier()
    picture = Image.fromarray(np.asarray(paint(random_scene(HELD_OUT)))).crop((0, 0, 64, 64))
    attacked = against_features(backbone.pooled, backbone.name, backbone.weights, 10)(picture, 1.0)
    noise = np.random.default_rng(0).choice([-8, 8], (64, 64, 3))
    noisy = Image.fromarray(np.clip(np.asarray(picture, int) + noise, 0, 255).astype(np.uint8))
    start, moved, random = backbone.vectors([picture, attacked, noisy])
    assert (moved - start).norm() > 1.5 * (random - start).norm()
