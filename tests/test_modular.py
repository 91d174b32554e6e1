"""A modular pipeline: no callback, and latents that are prepared inside its blocks."""

from __future__ import annotations

import pytest
import torch
from conftest import EMBED, SEQUENCE, _embeds, _vae, tiny_codec, tiny_noise_codec
from diffusers import FlowMatchEulerDiscreteScheduler, ModularPipeline, SD3Transformer2DModel

import diffmark
from diffmark.latent.injection import Injection
from diffmark.mark.errors import UnmarkableError
from diffmark.pixel.codec import MarkWarning

SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def run():
    """Tiny Stable Diffusion 3 in blocks, from embedded prompts."""
    from diffusers.modular_pipelines import stable_diffusion_3 as blocks
    from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
    from diffusers.modular_pipelines.stable_diffusion_3.decoders import StableDiffusion3DecodeStep
    from diffusers.modular_pipelines.stable_diffusion_3.modular_blocks_stable_diffusion_3 import (
        StableDiffusion3T2ICoreDenoiseStep,
    )

    assert blocks
    torch.manual_seed(0)
    parts = {"denoise": StableDiffusion3T2ICoreDenoiseStep(), "decode": StableDiffusion3DecodeStep()}
    pipe: ModularPipeline = SequentialPipelineBlocks.from_blocks_dict(parts).init_pipeline()
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=16, num_layers=1, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=EMBED, pooled_projection_dim=64, out_channels=16,
    )  # fmt: skip
    vae = _vae(16, scaling_factor=1.5305, shift_factor=0.0609).eval()
    pipe.update_components(
        transformer=transformer.eval(), vae=vae, scheduler=FlowMatchEulerDiscreteScheduler()
    )

    def call(**more):
        embeds = {
            name: _embeds(i, 1, SEQUENCE, EMBED)
            for i, name in enumerate(("prompt_embeds", "negative_prompt_embeds"))
        }
        pooled = {f"{k.replace('prompt', 'pooled_prompt')}": _embeds(9, 1, 64) for k in embeds}
        generator = torch.Generator().manual_seed(0)
        return pipe(
            **embeds,
            **pooled,
            num_inference_steps=4,
            generator=generator,
            **{"height": 256, "width": 256, **more},
        )

    call.pipe = pipe
    return call


def test_decoded_pictures_are_marked(run):
    with diffmark.watermark(run.pipe, SECRET, verify="raise"):
        (image,) = run(output="images")
        state = run()
        both = run(output=["images", "latents"])
    assert diffmark.detect(image, SECRET, fpr=1e-6, search=False).marked
    assert diffmark.detect(both["images"][0], SECRET, fpr=1e-6, search=False).marked
    assert diffmark.detect(state.get("images")[0], SECRET, fpr=1e-6, search=False).marked


def test_a_call_that_gives_latents_is_refused_without_a_codec_and_said_with_one(run, monkeypatch):
    codec, injection = tiny_codec(16), Injection("final")
    plain = run(output="latents")
    with (
        diffmark.watermark(run.pipe, codec, SECRET, injection=injection, verify=None),
        pytest.warns(MarkWarning, match="the generation layer marks alone"),
    ):
        marked = run(output=["latents"])["latents"]
    assert not torch.equal(marked, plain)
    monkeypatch.setattr(run.pipe.transformer, "forward", None)  # refused before any work
    for output in ("latents", ["latents"]):
        with (
            diffmark.watermark(run.pipe, None, SECRET),
            pytest.raises(UnmarkableError, match="gives latents and no pictures"),
        ):
            run(output=output)


@pytest.mark.parametrize("mode", ["final", "late"])
def test_latents_are_marked_through_the_scheduler(run, mode):
    codec, injection = tiny_codec(16), Injection(mode, start=0.4)
    plain = run(output="latents")
    with diffmark.watermark(run.pipe, codec, SECRET, injection=injection, pixel=False, verify=None):
        difference = run(output="latents") - plain
    if mode == "final":
        torch.testing.assert_close(difference, codec.delta(SECRET, (32, 32)), atol=1e-4, rtol=1e-3)
    assert difference.abs().max() > 0


def test_a_share_before_the_first_step_is_refused_at_once(run):
    with (
        pytest.raises(UnmarkableError, match="use 'final' or 'late'"),
        diffmark.watermark(run.pipe, tiny_codec(16), SECRET, injection=Injection("persistent")),
    ):
        pass


def test_a_codec_of_initial_noise_is_refused_and_the_pixel_layer_marks_alone(run, monkeypatch, caplog):
    from diffmark.mark import context

    codec = tiny_noise_codec(channels=16)
    with (
        pytest.raises(UnmarkableError, match="cannot be reached, and this codec marks the noise"),
        diffmark.watermark(run.pipe, codec, SECRET),
    ):
        pass
    monkeypatch.setattr(context, "codec_for", lambda vae: "a codec")
    monkeypatch.setattr(context, "_bundled", lambda name: codec)
    with diffmark.watermark(run.pipe, SECRET, verify="raise"):
        (image,) = run(output="images")
    assert "'a codec' marks initial noise: the pixel layer marks alone" in caplog.text
    assert diffmark.detect(image, SECRET, fpr=1e-6, search=False).marked
