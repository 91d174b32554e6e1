"""How the pixel layer's writer is fitted to copies of its picture, and the means that it and the reader take."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import minimum_filter, uniform_filter

from diffmark.pixel.arrivals import COPIES
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.fitting import evened, next_chroma, next_gain
from diffmark.pixel.forecast import forecast
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.pixel.layout import Layout, PixelConfig
from diffmark.pixel.spectrum import box, forward, inverse, least, lowest, planes
from diffmark.pixel.tones import Tones
from diffmark.pixel.visibility import Visibility
from diffmark.pixel.writer import masking


@pytest.mark.parametrize("shape", [(512, 512), (7, 300), (3, 3)])
@pytest.mark.parametrize("size", [1, 5, 11, 73])
def test_means_over_windows_are_scipys(shape: tuple[int, int], size: int) -> None:
    plane = np.random.default_rng(0).normal(100, 30, shape).astype(np.float32)
    assert np.allclose(box(plane, size), uniform_filter(plane, size, mode="reflect"), atol=2e-4)


@pytest.mark.parametrize("shape", [(512, 512), (7, 300), (3, 3)])
@pytest.mark.parametrize("size", [1, 3, 5, 11, 73])
def test_least_values_of_windows_are_scipys(shape: tuple[int, int], size: int) -> None:
    plane = np.random.default_rng(0).normal(100, 30, shape).astype(np.float32)
    assert np.array_equal(least(plane, size), minimum_filter(plane, size, mode="reflect"))


def test_amplitudes_go_to_bits_that_would_be_lost_at_the_same_cost() -> None:
    rng = np.random.default_rng(1)
    scores = 0.5 + rng.normal(0, 0.5, (1, 2, 64)).repeat(3, axis=0)  # three copies say alike
    costs, planes = np.array([2.0, 1.0]), np.array([0, 0])
    found = evened(np.ones((2, 64)), scores, np.ones(3), costs, planes)
    total = scores[0].sum(axis=0)
    assert found[:, total < 0].mean() > 1.2 * found[:, total > 2].mean()
    assert costs @ np.mean(found**2, axis=1) == pytest.approx(costs.sum())
    assert np.mean(found[1]) > np.mean(found[0])  # the band that says as much for half the cost


def test_gain_stays_within_the_bounds_of_quality() -> None:
    assert next_gain(1.0, 15, 1.0, 80, 90) == pytest.approx(1)
    assert next_gain(1.0, 15, 9.0, 85, 90) < 1  # no worse than 85, with a margin
    assert next_gain(1.0, 5, 0.1, 80, 90) > 1  # no better than 90
    assert next_chroma(1.0, 0.1) > 1 > next_chroma(1.0, 5.0)


def test_tones_respond_to_their_own_waves() -> None:
    tones = Tones(PUBLIC_KEY)
    amplitudes = np.linspace(0.5, 2, len(tones.phases))
    response = tones.responses(tones.waves(amplitudes)) / (512 * 512 / 2)
    assert np.allclose(response, amplitudes, atol=0.05)
    noise = np.random.default_rng(2).normal(size=(512, 512)).astype(np.float32)
    assert tones.level(noise) == pytest.approx(np.full(len(amplitudes), 512), rel=0.9)


def test_tones_hold_what_another_thread_has_thrown_away() -> None:
    class Forgetful(dict):  # type: ignore[type-arg]
        def __setitem__(self, name: object, value: object) -> None:
            self.clear()

    tones = Tones(PUBLIC_KEY)
    vars(tones)["_grids"] = Forgetful()
    ones = np.ones(len(tones.phases))
    assert np.array_equal(tones.waves(ones, (64, 96)), Tones(PUBLIC_KEY).waves(ones, (64, 96)))


def test_patterns_are_derived_once_for_a_key_and_a_config() -> None:
    layout = PixelCodec().layout
    assert PixelCodec().layout is layout
    assert PixelCodec(config=PixelConfig(length=32)).layout is not layout
    assert PixelCodec(OperatorKey(bytes(32))).layout is not layout


@pytest.mark.parametrize("name", COPIES)
def test_copies_are_frames(name: str) -> None:
    picture = Image.fromarray(np.random.default_rng(3).integers(0, 256, (90, 160, 3), np.uint8))
    frame, present = COPIES[name](picture)
    assert frame.shape == (3, 512, 512)
    assert present is None or 0.45 < present.mean() < 0.55


def busy(width: int, height: int) -> Image.Image:
    """Noise of several scales."""
    rng = np.random.default_rng(4)
    layers = [
        Image.fromarray(rng.integers(0, 256, (max(2, height // n), max(2, width // n), 3), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for n in (4, 16, 64)
    ]
    return Image.fromarray(np.mean([np.asarray(layer) for layer in layers], axis=0).astype(np.uint8))


def test_the_lowest_coefficients_are_a_corner_of_the_transform() -> None:
    plane = np.random.default_rng(5).normal(size=(512, 300)).astype(np.float32)
    assert np.allclose(lowest(plane, 64), forward(plane)[:64, :64], atol=1e-4)


def test_a_spectrum_is_sampled_at_the_pixels_of_any_shape() -> None:
    spectrum = np.zeros((60, 60), np.float32)
    spectrum[7, 5] = 512 / 2
    y, x = ((np.arange(n) + 0.5) / n for n in (90, 64))
    wave = np.outer(np.cos(np.pi * 7 * y), np.cos(np.pi * 5 * x))
    assert np.allclose(inverse(spectrum, (90, 64)), wave, atol=1e-5)
    assert not inverse(
        np.pad(spectrum[7:8, 5:6], ((99, 0), (0, 0))), (64, 64)
    ).any()  # too fine for 64 pixels


def test_a_forecast_helps_bits_that_the_picture_speaks_against() -> None:
    layout = Layout(PixelConfig(), PUBLIC_KEY)
    picture = planes(busy(333, 300))
    mask, signs = masking(picture[0]), np.ones(64)
    found = forecast(picture, mask, layout, signs)
    says = layout.frame_scores(picture[0] - box(picture[0], 7), picture[1:])[:5].sum(axis=0)
    against, helped = says < -1, says > 1
    assert found.amplitudes[:5, against].mean() > 1.3 * found.amplitudes[:5, helped].mean()
    assert np.allclose(found.amplitudes, forecast(picture, mask, layout, signs).amplitudes)


@pytest.mark.parametrize("size", [(64, 64), (256, 256), (500, 333), (512, 512), (1200, 700)])
def test_a_mark_that_is_not_fitted_to_copies_is_read_and_keeps_to_its_quality(size: tuple[int, int]) -> None:
    codec, cover, secret = PixelCodec(), busy(*size), "00ff12345678abcd"
    residual = codec.residual(cover, secret, rounds=0)
    assert residual.shape == (size[1], size[0], 3)
    pixels = np.clip(np.rint(np.asarray(cover) + residual), 0, 255).astype(np.uint8)
    reading = codec.read(Image.fromarray(pixels), search=False)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(secret), np.uint8))
    assert np.sum((reading.margins > 0) == (bits > 0)) >= (60 if min(size) > 64 else 40)
    if max(size) <= 512:
        assert Visibility(cover).ssimulacra2(Image.fromarray(pixels)) == pytest.approx(82, abs=5)
    assert not codec.residual(cover, secret, quality=100, rounds=0).any()
