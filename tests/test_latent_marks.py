"""The delta of a picture that is known is read by whoever may look, at every size."""

from __future__ import annotations

import copy
import warnings

import accelerate
import numpy as np
import pytest
import torch
from conftest import _build, tiny_codec, with_fit
from PIL import Image

import diffmark
from diffmark.codec import Codec, whiten
from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.metrics import psnr
from diffmark.injection import Injection
from diffmark.latent_marks import delta_at_z0, mixture
from diffmark.training.spread import start_spread
from diffmark.vae import decode, encode, own_vae, upcast
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.paint import paint
from diffmark.vista.scenes import random_scene
from diffmark.vista.training.data import to_tensor, to_uint8


def readable(channels: int = 4) -> Codec:
    """A tiny codec whose decoder reads each bit by what it adds to delta."""
    codec = tiny_codec(
        channels, injection=Injection("final"), fitted=True, deviation=0.3, matched_filter=True, embed_dim=64
    )
    start_spread(codec)
    bits = torch.eye(64, dtype=torch.uint8).numpy()
    patterns = codec.delta(bits) - codec.delta(np.zeros((1, 64), np.uint8))
    with torch.no_grad():
        codec.decoder.filters.weight.copy_(whiten(patterns).flatten(1))
        codec.decoder.head[-1].weight.zero_()
        codec.decoder.head[-1].bias.zero_()
    return codec


@pytest.fixture(scope="module")
def secret():
    return np.random.default_rng(3).integers(2, size=64, dtype=np.uint8)


@pytest.mark.parametrize("kind", ["sd", "sdxl", "sd3", "flux"])
def test_a_pipeline_adds_the_delta_that_fits_its_latents(kind, secret):
    rig = _build(kind)
    codec = readable(rig.channels)
    plain = rig.run()
    with diffmark.watermark(rig.pipe, codec, secret):
        marked = rig.run()
    latents = [
        z if z.ndim == 4 else rig.pipe._unpack_latents(z, 64, 64, rig.pipe.vae_scale_factor)
        for z in (plain, marked)
    ]
    expected = delta_at_z0(codec, rig.pipe.vae, latents[0], secret)
    torch.testing.assert_close(latents[1] - latents[0], expected, atol=1e-4, rtol=1e-3)
    if kind == "sd3":  # with these random weights some bits can be helped
        assert not torch.allclose(expected, codec.delta(secret), atol=1e-3)


def test_each_image_of_a_batch_is_fitted_for_itself(secret):
    detector = Detector.from_pretrained("sd")
    codec, vae = with_fit(detector.codec, True), detector.vae
    pictures = np.stack([paint(random_scene(seed), 512) for seed in (7, 8)])
    with torch.no_grad():
        z = encode(vae, torch.from_numpy(pictures.astype(np.float32) / 127.5 - 1).permute(0, 3, 1, 2))
    both = delta_at_z0(codec, vae, z, secret)
    torch.testing.assert_close(both[1:], delta_at_z0(codec, vae, z[1:], secret), atol=1e-4, rtol=1e-3)
    assert not torch.allclose(both[0], both[1], atol=1e-3)


def painted(detector: Detector, height: int, width: int, scene: int = 7) -> torch.Tensor:
    """Latents of a painted scene."""
    picture = Image.fromarray(paint(random_scene(scene), 512)).resize(
        (width, height), Image.Resampling.LANCZOS
    )
    with torch.no_grad():
        return encode(detector.vae, to_tensor(np.asarray(picture)[None]))


def image_of(detector: Detector, z: torch.Tensor) -> Image.Image:
    with torch.no_grad():
        return Image.fromarray(to_uint8(decode(detector.vae, z))[0])


def margins(detector: Detector, image: Image.Image, secret: np.ndarray) -> np.ndarray:
    return detector.detect(image).margins * (2.0 * secret - 1)


@pytest.mark.parametrize("family", ["sd", "sd3"])
def test_larger_latents_are_marked_as_visibly_as_native_ones_and_better_than_stretched(family, secret):
    detector = Detector.from_pretrained(family)
    z = painted(detector, 640, 768)
    plain = image_of(detector, z)
    stretched, carried = (
        delta_at_z0(with_fit(detector.codec, fitted), detector.vae, z, secret) for fitted in (False, True)
    )
    assert carried.shape == z.shape
    marked = image_of(detector, z + carried)
    native = painted(detector, 512, 512)
    beside = image_of(detector, native + delta_at_z0(detector.codec, detector.vae, native, secret))
    assert psnr(marked, plain) == pytest.approx(psnr(beside, image_of(detector, native)), abs=1.5)
    assert margins(detector, marked, secret).min() > 1
    # made as loud, the stretched one is read worse
    loud = stretched
    while psnr(image_of(detector, z + loud), plain) > psnr(marked, plain):
        loud = 1.1 * loud
    assert (
        margins(detector, image_of(detector, z + loud), secret).min()
        < margins(detector, marked, secret).min()
    )


def test_shares_of_two_changes_are_what_they_are_worth():
    changes = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    shares = torch.tensor(mixture(torch.tensor([3.0, 4.0]).double(), changes, torch.tensor(2.0)))
    torch.testing.assert_close(shares, torch.tensor([1.2, 1.6]))  # their mean square is half of 4
    alike = torch.tensor([[1.0, 0.0], [2.0, 1.0]])  # the second is mostly the first, louder, and worth less
    assert mixture(torch.tensor([3.0, 4.0]).double(), alike, torch.tensor(2.0)) == pytest.approx([2.0, 0.0])
    nearly = mixture(torch.tensor([10.0, 1.0]).double(), changes, torch.tensor(0.5))
    assert nearly == pytest.approx([1.0, 0.0])  # both together are worth half a percent more
    for nothing in ([0.0, -1.0], [torch.nan, 1.0]):
        worth = torch.tensor(nothing).double()
        assert mixture(worth, changes, torch.tensor(0.5)) == pytest.approx([1.0, 0.0])
    assert mixture(torch.ones(2).double(), 0 * changes, torch.tensor(0.5)) == [
        1.0,
        0.0,
    ]  # no answer to any delta


def test_who_else_may_read_is_fitted_for(secret):
    """An autoencoder that encodes otherwise than the model's reads more of a mark that was made for it too."""
    detector = Detector.from_pretrained("sd")
    other = copy.deepcopy(detector.vae)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.encoder.parameters():
            parameter += 0.3 * parameter.std(correction=0) * torch.randn(parameter.shape, generator=generator)
    z, reader = painted(detector, 512, 512), Detector(detector.codec, other)
    alone, both = (
        image_of(detector, z + delta_at_z0(detector.codec, detector.vae, z, secret, own=own))
        for own in (None, other)
    )
    low_alone, low_both = (np.sort(margins(reader, image, secret))[:8].mean() for image in (alone, both))
    assert low_both > low_alone + 0.5
    assert margins(detector, both, secret).min() > 0


def test_a_pipeline_looks_with_the_autoencoder_beside_the_codec(tmp_path, secret):
    rig = _build("sd3")
    readable(rig.channels).save_pretrained(tmp_path)
    torch.manual_seed(0)
    small = {"block_out_channels": (4, 4, 8, 8), "layers_per_block": 1}
    PatchAutoencoder(latent_channels=rig.channels, **small).save_pretrained(tmp_path / "vae")
    codec = Codec.from_pretrained(tmp_path)
    here = torch.device("cpu")
    own = own_vae(codec, rig.pipe.vae, here)
    assert isinstance(own, PatchAutoencoder)
    assert own_vae(codec, rig.pipe.vae, here) is own  # loaded once
    assert own_vae(codec, own, here) is None  # it is the model's
    assert own_vae(readable(), rig.pipe.vae, here) is None
    plain = rig.run()
    with diffmark.watermark(rig.pipe, codec, secret):
        marked = rig.run()
    alone, both = (delta_at_z0(codec, rig.pipe.vae, plain, secret, own=vae) for vae in (None, own))
    torch.testing.assert_close(marked - plain, both, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(alone, both, atol=1e-3)


@pytest.mark.parametrize(("kind", "height", "width"), [("flux", 80, 96), ("sdxl", 64, 96), ("sd", 48, 64)])
def test_a_pipeline_marks_other_sizes_with_a_secret_an_image(kind, height, width, secret):
    rig = _build(kind)
    codec, secrets = readable(rig.channels), np.stack([secret, 1 - secret])
    sizes = {"height": height, "width": width, "num_images_per_prompt": 2}
    plain = rig.run(**sizes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "images this small hold the mark badly")  # weights are random here
        with diffmark.watermark(rig.pipe, codec, secrets):
            marked = rig.run(**sizes)
        plain, marked = (
            z if z.ndim == 4 else rig.pipe._unpack_latents(z, height, width, rig.pipe.vae_scale_factor)
            for z in (plain, marked)
        )
        assert plain.shape == (2, rig.channels, height // 8, width // 8)
        for number in range(2):
            part = slice(number, number + 1)
            expected = delta_at_z0(codec, rig.pipe.vae, plain[part], secrets[part])
            torch.testing.assert_close((marked - plain)[part], expected, atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("height", [64, 96])
def test_a_pipeline_of_half_precision_is_fitted_in_float32(height, secret):
    rig = _build("sd3")
    codec = readable(rig.channels)
    with torch.no_grad():
        z = torch.randn(1, rig.channels, height // 8, 8, generator=torch.Generator().manual_seed(1))
        vae = copy.deepcopy(rig.pipe.vae).bfloat16()
        rounded = copy.deepcopy(vae).float()
        with upcast(vae):
            fitted = delta_at_z0(codec, vae, z, secret)
        assert next(vae.parameters()).dtype == torch.bfloat16
    torch.testing.assert_close(fitted, delta_at_z0(codec, rounded, z, secret), atol=1e-4, rtol=1e-3)


def test_weights_that_are_kept_elsewhere_are_read_with_all_the_same(secret):
    """As a pipeline's `enable_sequential_cpu_offload` does it."""
    vae = copy.deepcopy(_build("sd3").pipe.vae)
    codec, z = readable(16), torch.randn(1, 16, 8, 12, generator=torch.Generator().manual_seed(1))
    expected = delta_at_z0(codec, vae, z, secret, own=_build("sd3").pipe.vae)
    accelerate.cpu_offload(vae, torch.device("cpu"))
    assert next(vae.parameters()).device.type == "meta"
    with upcast(vae):
        found = delta_at_z0(codec, vae, z, secret, own=_build("sd3").pipe.vae)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
def test_a_strength_is_a_number_that_is_not_negative(strength, secret):
    with pytest.raises(ValueError, match="at least 0"):
        diffmark.WatermarkCallback(_build("sd").pipe, readable(), secret, strength)
    with pytest.raises(ValueError, match="at least 0"):
        embed(Image.new("RGB", (64, 64)), readable(), _build("sd").pipe.vae, secret, strength)


@pytest.fixture(scope="module")
def small():
    """Detector, latents of 256 pixels, and what the detector reads in the picture of some."""
    detector = Detector.from_pretrained("sd")
    pixels = torch.from_numpy(paint(random_scene(7), 256).astype(np.float32) / 127.5 - 1)

    def right(z, secret):
        image = Image.fromarray(to_uint8(decode(detector.vae, z))[0])
        return float(((detector.detect(image).margins > 0) == secret).mean())

    with torch.no_grad():
        return detector, encode(detector.vae, pixels.permute(2, 0, 1)[None]), torch.no_grad()(right)


def test_latents_too_coarse_for_the_patterns_get_a_delta_of_their_own(secret, small):
    detector, z, right = small
    stretched, delta = (
        delta_at_z0(with_fit(detector.codec, fitted), detector.vae, z, secret) for fitted in (False, True)
    )
    assert float(delta.std()) == pytest.approx(float(stretched.std()), rel=1e-3)
    assert right(z + stretched, secret) < 0.8
    assert right(z + delta, secret) > 0.95
    assert not delta.requires_grad
    assert all(parameter.grad is None for parameter in detector.vae.parameters())


def test_it_is_found_where_gradients_are_off(secret, small):
    detector, z, right = small
    with torch.inference_mode():
        delta = delta_at_z0(detector.codec, detector.vae, z.clone(), secret)
    assert right(z + delta, secret) > 0.95


def test_a_mark_that_cannot_be_read_is_told(secret, small):
    detector, z, _ = small
    with pytest.warns(UserWarning, match=r"\d\d% of the bits are read; generate larger ones"):
        delta_at_z0(detector.codec, detector.vae, z, secret, strength=0.02)


def test_an_autoencoder_without_gradients_is_told(secret, small):
    detector, z, _ = small
    with pytest.raises(ValueError, match="no gradient"):
        delta_at_z0(detector.codec, detector.vae, torch.full_like(z, torch.nan), secret)
