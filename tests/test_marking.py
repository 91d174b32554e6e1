"""Injection into real diffusers pipelines, each at tiny size."""

from __future__ import annotations

import functools
import itertools

import diffusers
import numpy as np
import pytest
import torch
from conftest import tiny_codec
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback
from pipelines import build

import diffmark
from diffmark.latent.injection import Injection
from diffmark.latent.vae import FamilyError
from diffmark.mark.errors import UnmarkableError
from diffmark.secret import random_secrets

PIPELINES = ["sd", "img2img", "inpaint", "inpaint9", "sdxl", "sd3", "flux", "lcm"]
SCHEDULERS = [
    "DDIMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "UniPCMultistepScheduler",
    "PNDMScheduler",
    "HeunDiscreteScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "LMSDiscreteScheduler",
]
# Codecs without training are not read back, and latents are looked at here, not pixels.
watermark = functools.partial(diffmark.watermark, pixel=False, verify=None)
WatermarkCallback = functools.partial(diffmark.WatermarkCallback, verify=None)
START = Injection("persistent")  # with one step, the whole dose is added before it


def unpacked(latents: torch.Tensor) -> torch.Tensor:
    return latents if latents.ndim == 4 else diffusers.FluxPipeline._unpack_latents(latents, 64, 64, 8)


@pytest.mark.parametrize("name", PIPELINES)
def test_strength_zero_is_bit_identical_and_strength_one_is_not(rig, name, secret):
    rig = rig(name)
    codec = tiny_codec(rig.channels)
    plain = rig.run()
    with watermark(rig.pipe, codec, secret, strength=0.0):
        assert torch.equal(rig.run(), plain)
    for mode in ("persistent", "paper", "mean", "late", "final"):
        with watermark(rig.pipe, codec, secret, injection=Injection(mode, start=0.5)):
            assert not torch.equal(rig.run(), plain), mode
    assert torch.equal(rig.run(), plain)  # the pipeline is as it was


@pytest.mark.parametrize("name", PIPELINES)
def test_final_mode_adds_delta_to_z0(rig, name, secret):
    rig = rig(name)
    codec = tiny_codec(rig.channels)
    plain = unpacked(rig.run())
    with watermark(rig.pipe, codec, secret, strength=0.5, injection=Injection("final")):
        marked = unpacked(rig.run())
    torch.testing.assert_close(marked - plain, 0.5 * codec.delta(secret), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux", "lcm"])
def test_first_share_is_added_before_the_first_step(rig, name, secret):
    """One step of a marked pipeline equals one step of a plain one that starts from latents + delta."""
    rig = rig(name)
    codec = tiny_codec(rig.channels)
    start = torch.randn(1, rig.channels, 8, 8, generator=torch.Generator().manual_seed(3))
    delta = codec.delta(secret)
    sigma = float(getattr(rig.pipe.scheduler, "init_noise_sigma", 1.0))
    shifted = start + delta
    if (
        sigma != 1.0
    ):  # Euler's latents are z * sqrt(1 + sigma^2), and the pipeline multiplies by init_noise_sigma
        rig.pipe.scheduler.set_timesteps(1)
        scale = float((1 + rig.pipe.scheduler.sigmas[0] ** 2).sqrt())
        shifted = start + delta * scale / float(rig.pipe.scheduler.init_noise_sigma)
    if name == "flux":
        start, shifted = (rig.pipe._pack_latents(x, 1, 16, 8, 8) for x in (start, shifted))
    kept = start.clone()
    with watermark(rig.pipe, codec, secret, injection=START):
        marked = rig.run(steps=1, latents=start)
    assert torch.equal(start, kept)  # latents given by the caller are not changed
    torch.testing.assert_close(marked, rig.run(steps=1, latents=shifted), atol=1e-4, rtol=1e-4)


def ddim_by_hand(rig, delta, steps, weights=None):
    """Algorithm 3 as a direct loop; weight 1 at every step unless given."""
    pipe, guidance = rig.pipe, rig.arguments["guidance_scale"]
    pipe.scheduler.set_timesteps(steps)
    z = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    embeds = torch.cat([rig.arguments["negative_prompt_embeds"], rig.arguments["prompt_embeds"]])
    alphas = pipe.scheduler.alphas_cumprod
    times = [*pipe.scheduler.timesteps.tolist(), None]
    with torch.no_grad():
        for k, (t, following) in enumerate(itertools.pairwise(times)):
            z = z + (1.0 if weights is None else weights[k]) * delta
            uncond, cond = pipe.unet(torch.cat([z, z]), t, encoder_hidden_states=embeds).sample.chunk(2)
            eps = uncond + guidance * (cond - uncond)
            now = alphas[t]
            then = alphas[following] if following is not None else torch.tensor(1.0)
            z = then.sqrt() * (z - (1 - now).sqrt() * eps) / now.sqrt() + (1 - then).sqrt() * eps
    return z


def test_mode_paper_is_algorithm_3(rig, secret):
    rig = rig("sd")
    codec = tiny_codec()
    expected = ddim_by_hand(rig, codec.delta(secret), steps=10)
    with watermark(rig.pipe, codec, secret, injection=Injection("paper")):
        marked = rig.run(steps=10)
    assert (marked - expected).abs().max() / expected.abs().max() < 1e-6


@pytest.mark.parametrize("mode", ["persistent", "late", "mean"])
def test_shares_reach_the_denoiser_at_their_steps(rig, mode, secret):
    rig = rig("sd")
    codec, injection = tiny_codec(), Injection(mode, start=0.5)
    rig.pipe.scheduler.set_timesteps(10)
    weights = injection.weights(rig.pipe.scheduler.timesteps.numpy() / 1000)
    expected = ddim_by_hand(rig, codec.delta(secret), 10, weights)
    with watermark(rig.pipe, codec, secret, injection=injection):
        marked = rig.run(steps=10)
    assert (marked - expected).abs().max() / expected.abs().max() < 1e-6


def silence(monkeypatch, pipe):
    """A denoiser that predicts no noise: z0 is then a known linear function of what was injected."""
    monkeypatch.setattr(pipe.unet, "forward", lambda sample, *args, **kwargs: (torch.zeros_like(sample),))


def delivered(rig, codec, secret, injection, monkeypatch, dtype=torch.float32):
    """What arrives at z0 of a silent denoiser, as a multiple of delta, against sum_k w_k / sqrt(abar_k)."""
    silence(monkeypatch, rig.pipe)
    embeds = {name: rig.arguments[name].to(dtype) for name in ("prompt_embeds", "negative_prompt_embeds")}
    rig.pipe.to(dtype)
    try:
        plain = rig.run(steps=20, **embeds)
        with watermark(rig.pipe, codec, secret, injection=injection):
            difference = (rig.run(steps=20, **embeds) - plain).float()
    finally:
        rig.pipe.to(torch.float32)
    times = rig.pipe.scheduler.timesteps.double().numpy()
    weights = injection.weights(times / 1000)
    abar = np.interp(times, np.arange(1000), rig.pipe.scheduler.alphas_cumprod.numpy())
    delta = codec.delta(secret)
    measured = float((difference * delta).sum() / delta.square().sum())
    return measured, float((weights[:-1] / np.sqrt(abar)).sum())


@pytest.mark.parametrize("mode", ["late", "persistent", "mean"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_delivers_the_dose_at_the_same_noise_level(rig, name, mode, secret, monkeypatch):
    measured, expected = delivered(rig(name), tiny_codec(), secret, Injection(mode, start=0.5), monkeypatch)
    assert measured == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["late", "mean"])
def test_small_shares_are_not_rounded_away(rig, mode, dtype, secret, monkeypatch):
    injection = Injection(mode, start=0.2)
    measured, expected = delivered(rig("sd"), tiny_codec(), secret, injection, monkeypatch, dtype)
    assert measured == pytest.approx(expected, rel=0.2)


def test_flow_matching_delivers_the_dose(rig, secret, monkeypatch):
    """A silent velocity leaves the latents as they are: z0 - start = dose * delta."""
    rig = rig("sd3")
    codec = tiny_codec(16)
    monkeypatch.setattr(rig.pipe.transformer, "forward", lambda hidden_states, **kwargs: (hidden_states * 0,))
    plain = rig.run(steps=12)
    for mode in ("persistent", "late", "mean"):
        with watermark(rig.pipe, codec, secret, injection=Injection(mode)):
            difference = rig.run(steps=12) - plain
        torch.testing.assert_close(difference, codec.delta(secret), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_strength_zero(rig, name, secret):
    rig = rig(name)
    plain = rig.run()
    with watermark(rig.pipe, tiny_codec(), secret, strength=0):
        assert torch.equal(rig.run(), plain)


def test_one_secret_an_image(rig):
    rig = rig("sd")
    codec, secrets = tiny_codec(), random_secrets(4)
    with watermark(rig.pipe, codec, secrets, injection=Injection("final")):
        marked = rig.run(images=2, num_images_per_prompt=2)
    difference = marked - rig.run(images=2, num_images_per_prompt=2)
    torch.testing.assert_close(difference, codec.delta(secrets), atol=1e-5, rtol=1e-4)


def test_wrong_number_of_secrets_raises_before_denoising(rig, monkeypatch):
    rig = rig("sd")

    def never(*args, **kwargs):
        raise AssertionError("the denoiser ran")

    monkeypatch.setattr(rig.pipe.unet, "forward", never)
    with (
        pytest.raises(UnmarkableError, match="3 secrets for 2 images"),
        watermark(rig.pipe, tiny_codec(), random_secrets(3)),
    ):
        rig.run(images=2)


def test_guidance_off(rig, secret):
    rig = rig("sd")
    codec = tiny_codec()
    with watermark(rig.pipe, codec, secret, injection=Injection("final")):
        marked = rig.run(guidance_scale=1.0)
    torch.testing.assert_close(
        marked - rig.run(guidance_scale=1.0), codec.delta(secret), atol=1e-5, rtol=1e-4
    )


def test_other_sizes_stretch_delta(rig, secret):
    rig = rig("sd")
    codec = tiny_codec()
    with watermark(rig.pipe, codec, secret, injection=Injection("final")):
        marked = rig.run(height=64, width=128)
    difference = marked - rig.run(height=64, width=128)
    assert difference.shape == (1, 4, 8, 16)
    assert float(difference.std()) == pytest.approx(float(codec.delta(secret).std()), rel=1e-3)


def test_flux_packs_a_rectangular_delta(rig, secret):
    rig = rig("flux")
    codec = tiny_codec(16)
    with watermark(rig.pipe, codec, secret, injection=Injection("final")):
        marked = rig.run(height=64, width=96)
    difference = diffusers.FluxPipeline._unpack_latents(marked - rig.run(height=64, width=96), 64, 96, 8)
    torch.testing.assert_close(difference, codec.delta(secret, (8, 12)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(rig, dtype, secret):
    rig = rig("sd")
    codec = tiny_codec()
    embeds = {name: rig.arguments[name].to(dtype) for name in ("prompt_embeds", "negative_prompt_embeds")}
    rig.pipe.to(dtype)
    try:
        plain = rig.run(**embeds)
        with watermark(rig.pipe, codec, secret, injection=Injection("final")):
            marked = rig.run(**embeds)
    finally:
        rig.pipe.to(torch.float32)
    assert marked.dtype == dtype
    torch.testing.assert_close((marked - plain).float(), codec.delta(secret), atol=0.03, rtol=0.1)


def test_images_come_out_as_usual(rig, secret):
    rig = rig("sd")
    with watermark(rig.pipe, tiny_codec(), secret):
        (image,) = rig.run(output_type="pil")
    assert image.size == (64, 64)


def test_inpainting_marks_both_sides_of_the_mask(rig, secret):
    rig = rig("inpaint")
    codec = tiny_codec()
    plain = rig.run()
    with watermark(rig.pipe, codec, secret, injection=Injection("late", start=0.5)):
        difference = rig.run() - plain
    kept = (slice(None), slice(None), slice(None), slice(4, None))
    torch.testing.assert_close(difference[kept], codec.delta(secret)[kept], atol=1e-5, rtol=1e-4)
    assert difference[..., :4].abs().min() > 0


def test_composes_with_the_callers_callbacks(rig, secret):
    rig = rig("sd")
    codec, seen = tiny_codec(), []

    class Counter(PipelineCallback):
        tensor_inputs = ["prompt_embeds"]  # noqa: RUF012

        def callback_fn(self, pipeline, step_index, timesteps, callback_kwargs):
            seen.append((step_index, "prompt_embeds" in callback_kwargs))
            return callback_kwargs

    def count(pipe, step, timestep, tensors):
        seen.append((step, "latents" in tensors))
        return {}

    injection = Injection("final")
    plain = rig.run()
    for theirs in (Counter(), count):
        with watermark(rig.pipe, codec, secret, injection=injection):
            marked = rig.run(callback_on_step_end=theirs)
        torch.testing.assert_close(marked - plain, codec.delta(secret), atol=1e-5, rtol=1e-4)
    assert seen == [(step, True) for step in range(4)] * 2
    ours = MultiPipelineCallbacks(
        [Counter(), WatermarkCallback(rig.pipe, codec, secret, injection=injection)]
    )
    for _ in range(2):  # the callback can be used again
        torch.testing.assert_close(rig.run(callback_on_step_end=ours), marked)


def test_callback_alone_refuses_what_it_cannot_do(rig, secret):
    lone = WatermarkCallback(rig("sd").pipe, tiny_codec(), secret)
    for _ in range(2):  # not only the first time
        with pytest.raises(UnmarkableError, match="before the first step"):
            rig("sd").run(steps=1, callback_on_step_end=lone)
    lcm = WatermarkCallback(rig("lcm").pipe, tiny_codec(), secret, injection=Injection("final"))
    with pytest.raises(UnmarkableError, match="'denoised' was not given"):
        rig("lcm").run(callback_on_step_end=lcm)
    flux = WatermarkCallback(rig("flux").pipe, tiny_codec(16), secret, injection=Injection("final"))
    with pytest.raises(UnmarkableError, match="packed"):
        rig("flux").run(callback_on_step_end=flux)


def test_pipeline_is_restored_after_an_exception(rig, secret):
    pipe = rig("sd").pipe
    plain = type(pipe)
    state = dict(vars(pipe))

    def fail(*args):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), watermark(pipe, tiny_codec(), secret):
        rig("sd").run(callback_on_step_end=fail)
    assert type(pipe) is plain
    assert {k: v for k, v in vars(pipe).items() if "diffmark" in k} == {}
    assert vars(pipe).keys() == state.keys()


def test_an_interrupted_run_is_not_passed_off_as_marked(rig, secret):
    rig = rig("sd")

    def interrupt(pipe, step, timestep, tensors):
        pipe._interrupt = step == 1
        return tensors

    with (
        pytest.raises(UnmarkableError, match="before the last step"),
        watermark(rig.pipe, tiny_codec(), secret),
    ):
        rig.run(callback_on_step_end=interrupt)


def test_a_run_over_the_first_part_of_the_schedule_raises(rig, secret):
    """SDXL's base model may hand over to a refiner: the refiner's run is the one to mark."""
    rig = rig("sdxl")
    with (
        pytest.raises(UnmarkableError, match="denoising_end"),
        watermark(rig.pipe, tiny_codec(), secret),
    ):
        rig.run(denoising_end=0.5)


def test_a_refiner_is_marked_over_the_last_part_of_the_schedule(secret):
    """It takes the base model's latents and goes on from `denoising_start`."""
    kind, codec = build("SDXL img2img"), tiny_codec(injection=Injection("final"))
    base = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    options = {"image": base, "denoising_start": 0.5, "output_type": "latent"}
    plain = kind.run(steps=4, **options).images
    with watermark(kind.pipe, codec, secret):
        marked = kind.run(steps=4, **options).images
    torch.testing.assert_close(marked - plain, codec.delta(secret, (8, 8)), atol=1e-4, rtol=1e-3)


def test_generators_one_an_image(rig, secret):
    rig = rig("sd")
    codec = tiny_codec()

    def run():
        generators = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
        return rig.run(images=2, generator=generators)

    plain = run()
    with watermark(rig.pipe, codec, secret, injection=Injection("final")):
        marked = run()
    expected = codec.delta(secret).expand(2, -1, -1, -1)
    torch.testing.assert_close(marked - plain, expected, atol=1e-5, rtol=1e-4)
    assert not torch.equal(plain[0], plain[1])


def test_what_cannot_be_marked_raises(rig, secret, monkeypatch):
    with (
        pytest.raises(FamilyError, match="16 channels"),
        watermark(rig("sd").pipe, tiny_codec(16), secret),
    ):
        pass
    with pytest.raises(FamilyError, match="'sdxl'"):
        WatermarkCallback(rig("sd").pipe, tiny_codec(family="sdxl"), secret)
    WatermarkCallback(rig("sd").pipe, tiny_codec(family="sd"), secret)
    pixels = diffusers.DDPMPipeline(torch.nn.Identity(), diffusers.DDPMScheduler())
    with pytest.raises(UnmarkableError, match="has no vae"):
        WatermarkCallback(pixels, tiny_codec(), secret)
    with (
        watermark(rig("sd").pipe, tiny_codec(), secret),
        pytest.raises(UnmarkableError, match="already inside"),
    ):
        WatermarkCallback(rig("sd").pipe, tiny_codec(), secret)
    with pytest.raises(FamilyError, match="'vista', the vae is of 'sd'; no codec ships"):
        WatermarkCallback(rig("sd").pipe, tiny_codec(family="vista"), secret)
    with pytest.raises(FamilyError, match="unknown family 'SDXL'"):
        WatermarkCallback(rig("sd").pipe, tiny_codec(family="SDXL"), secret)
    with pytest.raises(FamilyError, match="4 pixels a latent, the vae reduces 8 times"):
        WatermarkCallback(rig("sd").pipe, tiny_codec(pixels_per_latent=4), secret)
    for scheduler in (
        diffusers.EDMEulerScheduler(),
        diffusers.SASolverScheduler(),
        diffusers.DPMSolverSinglestepScheduler(),
        diffusers.PNDMScheduler(skip_prk_steps=False),
    ):
        monkeypatch.setattr(rig("sd").pipe, "scheduler", scheduler)
        with pytest.raises(UnmarkableError, match="not known to deliver"):
            WatermarkCallback(rig("sd").pipe, tiny_codec(), secret)
        WatermarkCallback(rig("sd").pipe, tiny_codec(), secret, injection=Injection("final"))


def test_inpainting_corners(rig, secret):
    rig = rig("inpaint")
    codec = tiny_codec()
    plain = rig.run(steps=10)
    with watermark(rig.pipe, codec, secret, injection=Injection("paper")):
        difference = rig.run(steps=10) - plain
    torch.testing.assert_close(difference[..., 4:], codec.delta(secret)[..., 4:], atol=1e-5, rtol=1e-4)
    with (
        pytest.raises(UnmarkableError, match="padding_mask_crop"),
        watermark(rig.pipe, codec, secret),
    ):
        rig.run(padding_mask_crop=8)


def test_bad_arguments(rig, codec, secret):
    with pytest.raises(ValueError, match="strength"):
        WatermarkCallback(rig("sd").pipe, codec, secret, strength=float("nan"))
    with pytest.raises(ValueError, match="16 hex digits"):
        WatermarkCallback(rig("sd").pipe, codec, "abc")
