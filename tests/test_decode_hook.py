"""The pixel layer where latents are decoded, and what a context says when it cannot mark."""

from __future__ import annotations

import logging

import diffusers
import numpy as np
import pytest
import torch
from conftest import _vae, tiny_codec
from PIL import Image

import diffmark
from diffmark.latent.injection import Injection
from diffmark.mark.decoding import watermark_vae
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.readback import pictures_of
from diffmark.pixel.codec import MarkWarning
from diffmark.secret import random_secrets

SIDE = 256  # pixels: enough for the pixel layer


def pictures(rig, **more):
    return rig.run(steps=1, **{"output_type": "pil", "height": SIDE, "width": SIDE, **more})


def found(image, secret):
    return diffmark.detect(image, secret, fpr=1e-6, search=False).verdict == "marked"


def test_the_pixel_layer_marks_alone_without_a_codec(rig, secret):
    rig = rig("sd")
    plain, decode = type(rig.pipe), rig.pipe.vae.decode
    with diffmark.watermark(rig.pipe, None, secret, verify="raise"):
        (marked,) = pictures(rig)
        with (
            pytest.raises(UnmarkableError, match="already inside"),
            diffmark.watermark(rig.pipe, None, secret),
        ):
            pass
    assert type(rig.pipe) is plain
    assert rig.pipe.vae.decode == decode
    assert "decode" not in vars(rig.pipe.vae)
    (unmarked,) = pictures(rig)
    assert found(marked, secret)
    assert not found(unmarked, secret)


def test_without_a_codec_nothing_unmarked_is_given(rig, secret, monkeypatch):
    rig = rig("sd")

    def never(*args, **kwargs):
        raise AssertionError("the denoiser ran")

    monkeypatch.setattr(rig.pipe.unet, "forward", never)
    for arguments in ({"output_type": "latent"}, {"output_type": "pil", "height": 56, "width": SIDE}):
        with (
            diffmark.watermark(rig.pipe, None, secret),
            pytest.raises(UnmarkableError, match="latent|64 pixels a side"),
        ):
            rig.run(**arguments)
    for wrong in ({"pixel": False}, {"injection": Injection("final")}):
        with (
            pytest.raises(ValueError, match="the pixel layer is the only mark"),
            diffmark.watermark(rig.pipe, None, secret, **wrong),
        ):
            pass
    two = np.stack([secret, secret])
    with diffmark.watermark(rig.pipe, None, two), pytest.raises(ValueError, match="2 secrets for 1 images"):
        pictures(rig)


def test_latents_carry_the_generation_layer_alone_and_it_is_said(rig, codec, secret):
    rig = rig("sd")
    plain = rig.run()
    with diffmark.watermark(rig.pipe, codec, secret, injection=Injection("final")) as pipe:
        assert pipe is rig.pipe
        with pytest.warns(MarkWarning) as said:
            marked = rig.run()
    first, second = (str(warning.message) for warning in said)
    assert "the generation layer marks alone" in first
    assert "the generation layer of image 0" in second  # the codec is untrained
    torch.testing.assert_close(marked - plain, codec.delta(secret), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("output_type", ["pil", "np", "pt"])
def test_every_picture_of_a_batch_has_its_own_secret(rig, output_type):
    rig, secrets = rig("sd"), random_secrets(2)
    with diffmark.watermark(rig.pipe, None, secrets, verify="raise"):
        images = pictures(rig, output_type=output_type, num_images_per_prompt=2)
    for image, own, other in zip(images, secrets, secrets[::-1], strict=True):
        assert found(image, own)
        assert not found(image, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_marked(rig, dtype, secret):
    rig = rig("sd")
    embeds = {name: rig.arguments[name].to(dtype) for name in ("prompt_embeds", "negative_prompt_embeds")}
    rig.pipe.to(dtype)
    try:
        with diffmark.watermark(rig.pipe, None, secret, verify="raise"):
            (image,) = pictures(rig, **embeds)
    finally:
        rig.pipe.to(torch.float32)
    assert found(image, secret)


def test_slices_and_tiles_are_marked_once(rig, secret, monkeypatch):
    rig = rig("sd")
    vae, decoded = rig.pipe.vae, []
    plain = type(vae)._decode
    monkeypatch.setattr(type(vae), "_decode", lambda *a, **k: decoded.append(1) or plain(*a, **k))
    vae.enable_slicing()
    vae.enable_tiling()
    try:
        with diffmark.watermark(rig.pipe, None, secret, verify="raise"):
            images = pictures(rig, num_images_per_prompt=2)
    finally:
        vae.disable_slicing()
        vae.disable_tiling()
    assert len(decoded) == 2
    assert all(found(image, secret) for image in images)


def test_a_mark_that_cannot_be_read_warns_at_every_size_or_raises(rig, secret, monkeypatch):
    rig = rig("sd")
    monkeypatch.setattr(
        diffmark.PixelCodec, "residual", lambda self, image, secret, rounds: np.zeros((SIDE, SIDE, 3))
    )
    with (
        diffmark.watermark(rig.pipe, None, secret),
        pytest.warns(
            MarkWarning, match="the pixel layer of image 0: .* of 64 bits are read back, 51 are needed"
        ),
    ):
        pictures(rig)
    with (
        diffmark.watermark(rig.pipe, None, secret, verify="raise"),
        pytest.raises(UnmarkableError, match="read back"),
    ):
        pictures(rig)
    with diffmark.watermark(rig.pipe, None, secret, verify=None):
        pictures(rig)
    with (
        pytest.raises(ValueError, match="verify is"),
        diffmark.watermark(rig.pipe, None, secret, verify="maybe"),
    ):
        pass


def test_what_happens_to_a_picture_after_it_is_marked_is_noticed(rig, secret, monkeypatch):
    """A safety checker that blacks out, for instance."""
    rig = rig("sd")
    plain = rig.pipe.image_processor.postprocess
    monkeypatch.setattr(
        rig.pipe.image_processor, "postprocess", lambda image, **options: plain(image * 0, **options)
    )
    with (
        diffmark.watermark(rig.pipe, None, secret),
        pytest.warns(MarkWarning, match="the pixel layer of image 0"),
    ):
        pictures(rig)


def test_a_latent_space_without_a_codec_is_marked_in_pixels_and_it_is_said(rig, secret, caplog):
    from diffmark.mark import context

    context._say_none.cache_clear()
    rig = rig("sd")
    with caplog.at_level(logging.WARNING, "diffmark"):
        for _ in range(2):
            with diffmark.watermark(rig.pipe, secret, verify="raise"):
                (image,) = pictures(rig)
    assert found(image, secret)
    (line,) = caplog.messages  # once for a kind of pipeline
    assert (
        line
        == "no codec ships for the latent space 'sd' of StableDiffusionPipeline: the pixel layer marks alone"
    )
    with pytest.raises(TypeError, match="a Codec or None"):
        diffmark.watermark(rig.pipe, "vista", secret)


def test_a_bare_vae(secret):
    torch.manual_seed(0)
    vae = _vae(scaling_factor=0.18215).eval()
    z = torch.randn(2, 4, 32, 32)
    with torch.no_grad():
        plain = vae.decode(z).sample
        hook = watermark_vae(vae, secret, verify="raise")
        with pytest.raises(UnmarkableError, match="already inside"):
            watermark_vae(vae, secret)
        marked = vae.decode(z).sample
        assert torch.equal(vae.decode(z, return_dict=False)[0], marked)
        hook.remove()
        assert torch.equal(vae.decode(z).sample, plain)
        asked = iter(random_secrets(2))
        with watermark_vae(vae, lambda: next(asked), verify="raise"):
            first, second = (vae.decode(z[:1]).sample for _ in range(2))
    assert not torch.equal(first, second)
    assert all(found((picture / 2 + 0.5).clamp(0, 1), secret) for picture in marked)
    with (
        watermark_vae(vae, random_secrets(3)),
        pytest.raises(UnmarkableError, match="3 secrets for 2 images"),
    ):
        vae.decode(z)


def test_what_is_no_picture_cannot_be_hooked(secret):
    with pytest.raises(UnmarkableError, match="has no decode"):
        watermark_vae(torch.nn.Identity(), secret)
    with pytest.raises(UnmarkableError, match="not red, green and blue"):
        watermark_vae(diffusers.AutoencoderKL(out_channels=1, norm_num_groups=32), secret)
    vae = _vae(scaling_factor=1.0).eval()
    with watermark_vae(vae, secret), torch.no_grad():
        with pytest.raises(UnmarkableError, match="not finite"):
            vae.decode(torch.full((1, 4, 8, 8), torch.nan))
        with pytest.raises(UnmarkableError, match="64 a side"):
            vae.decode(torch.zeros(1, 4, 4, 8))


def test_pipelines_without_a_vae_are_marked_where_pictures_are_finished(secret):
    """Models in pixel space have no vae; their image processor turns arrays into pictures."""

    class PixelSpace(diffusers.DiffusionPipeline):
        def __init__(self):
            super().__init__()
            self.image_processor = diffusers.image_processor.VaeImageProcessor()

        def __call__(self, output_type="pil"):
            noise = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) - 0.5
            return diffusers.ImagePipelineOutput(
                self.image_processor.postprocess(noise, output_type=output_type)
            )

    pipe = PixelSpace()
    with diffmark.watermark(pipe, secret, verify="raise"):
        assert found(pipe().images[0], secret)
    assert "postprocess" not in vars(pipe.image_processor)
    with (
        pytest.raises(UnmarkableError, match="has no vae and no image_processor"),
        diffmark.watermark(diffusers.DDPMPipeline(torch.nn.Identity(), diffusers.DDPMScheduler()), secret),
    ):
        pass


def test_several_secrets_for_frames_that_are_decoded_like_pictures(rig, monkeypatch):
    rig = rig("sd")
    monkeypatch.setattr(rig.pipe, "video_processor", object(), raising=False)
    with (
        pytest.raises(UnmarkableError, match="one secret for all of them"),
        diffmark.watermark(rig.pipe, None, random_secrets(2)),
    ):
        pass


def test_pictures_are_found_in_every_kind_of_output():
    image = Image.new("RGB", (8, 8))
    assert pictures_of(image) == [image]
    assert pictures_of([image, image]) == [image, image]
    assert pictures_of(([image],)) == [image]
    assert pictures_of([[image, "middle", image]]) == ["middle"]  # a video
    assert pictures_of({"images": [image]}) == [image]
    assert len(pictures_of(np.zeros((2, 8, 8, 3)))) == 2
    (frame,) = pictures_of(torch.arange(3.0).view(1, 3, 1, 1, 1).expand(1, 3, 3, 8, 8))
    assert frame.shape == (3, 8, 8)
    assert frame.unique().tolist() == [1]
    assert pictures_of(None) == []
    assert pictures_of("nothing") == []


def test_the_codec_of_another_space_is_refused_with_the_name_of_the_right_one():
    from diffmark.latent.vae import FamilyError, check_family, codec_for
    from diffmark.vista import load_autoencoder

    vae = load_autoencoder()
    assert codec_for(vae) == "vista"
    with pytest.raises(FamilyError, match="the vae is of 'vista'; the codec for it is 'vista'"):
        check_family(tiny_codec(family="sd").config, vae)
    with pytest.raises(FamilyError, match="no codec ships for 'sd', the pixel layer marks it"):
        check_family(tiny_codec(family="vista").config, _vae(scaling_factor=0.18215))
    assert codec_for(_vae(scaling_factor=0.18215)) is None
