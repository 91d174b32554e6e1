"""A fitted delta gives the bits of a picture as equal a margin as its strength allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec, with_fit
from PIL import Image

import diffmark
from diffmark.codec import Codec, spread
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.fitting import fill, fitted_weights, share_out
from diffmark.injection import Injection
from diffmark.marking import UnmarkableError
from diffmark.vae import decode, encode, upcast
from diffmark.vista.paint import paint
from diffmark.vista.scenes import random_scene


@pytest.fixture(scope="module")
def secret():
    return np.random.default_rng(3).integers(2, size=64, dtype=np.uint8)


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 100.0])
def test_water_is_level(spread):
    host = spread * torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).double()
    weights = fill(host)
    torch.testing.assert_close(weights.square().mean(dim=1), torch.ones(5).double())
    for row, given in zip(host, weights, strict=True):
        level = (row + given)[given > 0]
        torch.testing.assert_close(level, level[:1].expand_as(level))
        assert (row[given == 0] >= level[0]).all()


def test_equal_bits_are_given_the_same():
    torch.testing.assert_close(fill(torch.full((2, 64), -1.5).double()), torch.ones(2, 64).double())


def test_bits_that_cannot_be_won_are_left():
    """Levelled, these would all be wrong."""
    host = torch.tensor([[-30.0] * 8 + [-1.0] * 28 + [5.0] * 28]).double()
    weights = share_out(host, torch.ones(1, 1).double())
    right = (host + weights > 0).sum()
    assert right == 56
    assert (weights[0, :8] == 0).all()
    assert (host + fill(host) > 0).sum() == 28
    assert float(weights.square().mean()) == pytest.approx(1)


def test_weights_scale_what_a_bit_adds_to_delta(secret):
    codec = Codec.from_pretrained("sd")
    weights = torch.ones(1, 64)
    weights[0, 5] = 0
    without = codec.encoder.distribution(torch.from_numpy(secret[None]), weights)[0]
    flipped = secret.copy()
    flipped[5] ^= 1
    both = [codec.encoder.distribution(torch.from_numpy(s[None]))[0] for s in (secret, flipped)]
    halfway = sum(both) / 2
    left = (without - halfway).norm() / (both[0] - both[1]).norm()
    assert left < 0.1  # the encoder is almost linear


def test_the_worst_margin_rises_and_the_strength_stays(secret):
    detector = Detector.from_pretrained("sdxl")
    picture = Image.fromarray(paint(random_scene(7), 512))
    worst, ratios = [], []
    for fitted in (False, True):
        marked = embed(picture, with_fit(detector.codec, fitted), detector.vae, secret, 1.0)
        worst.append((detector.detect(marked, secret).margins * (2.0 * secret - 1)).min())
        ratios.append(psnr(marked, picture))
    assert worst[1] > worst[0] + 1
    assert ratios[1] == pytest.approx(ratios[0], abs=0.5)


def test_a_reading_that_is_not_finite_leaves_delta_as_it_was(secret):
    codec = tiny_codec()
    nothing = torch.full((1, 64, 2), torch.nan)
    weights = fitted_weights(codec, secret, nothing, lambda delta: nothing)
    torch.testing.assert_close(weights, torch.ones(1, 64))


@pytest.mark.parametrize(("fitted", "whole"), [(True, 1.0), (False, 0.528)])
def test_a_delta_of_another_size_comes_back_whole(secret, fitted, whole):
    """In every injection mode: a pipeline asks the codec for it."""
    codec = with_fit(Codec.from_pretrained("sd"), fitted)
    delta = codec.delta(secret)
    back = torch.nn.functional.interpolate(
        codec.delta(secret, (128, 96)), (64, 64), mode="bilinear", antialias=True
    )
    assert float((back * delta).sum() / delta.square().sum()) == pytest.approx(whole, abs=2e-3)
    torch.testing.assert_close(spread(0 * delta, (96, 96)), torch.zeros(1, 4, 96, 96))


def test_an_autoencoder_that_overflows_is_raised_to_float32_for_the_look():
    vae = _build("sd").pipe.vae
    vae.register_to_config(force_upcast=True)
    vae.half()
    try:
        with upcast(vae):
            assert torch.isfinite(decode(vae, encode(vae, torch.zeros(1, 3, 64, 64)))).all()
            assert next(vae.parameters()).dtype == torch.float32
        assert next(vae.parameters()).dtype == torch.float16
    finally:
        vae.float()


@pytest.mark.parametrize(("mode", "asked", "needed"), [("final", 192, 256), ("late", 384, 512)])
def test_a_size_that_cannot_hold_the_mark_is_refused_before_any_work(secret, mode, asked, needed):
    rig, codec = _build("sd"), Codec.from_pretrained("sd")
    with (
        diffmark.watermark(rig.pipe, codec, secret, injection=Injection(mode)),
        pytest.raises(UnmarkableError, match=rf"{asked}x512 pixels are too small.*needs {needed}x{needed}"),
    ):
        rig.run(height=asked, width=512)


def test_nothing_is_too_small_to_stay_unmarked(secret):
    rig, codec = _build("sd"), Codec.from_pretrained("sd")
    plain = rig.run()
    with diffmark.watermark(rig.pipe, codec, secret, strength=0):
        torch.testing.assert_close(rig.run(), plain, atol=0, rtol=0)
