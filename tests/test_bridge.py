from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import _embeds, _sd_scheduler, tiny_codec

from diffmark.latent import bridge
from diffmark.latent.injection import Injection
from diffmark.mark.context import watermark

SHAPE = (2, 4, 8, 8)


def noise(seed, *shape):
    return torch.randn(*(shape or SHAPE), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def denoise(rig):
    pipe = rig("sd").pipe
    pipe.unet.requires_grad_(False)
    return bridge.denoiser_of(pipe.unet, pipe.scheduler, _embeds(1, 1, 7, 32).expand(2, -1, -1))


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_a_ddim_step_is_diffusers_own(kind):
    scheduler = _sd_scheduler(prediction_type=kind)
    scheduler.set_timesteps(10)
    trajectory = bridge.sampler_trajectory(scheduler, 10)
    z, output = noise(1), noise(2)
    for k, timestep in enumerate(trajectory.timesteps):
        expected = scheduler.step(output, timestep, z).prev_sample
        x0, predicted = bridge.predictions(output, z, trajectory.abar[k], kind)
        torch.testing.assert_close(bridge.ddim_step(x0, predicted, trajectory.abar[k + 1]), expected)


def test_an_lcm_path_is_diffusers_own(rig):
    scheduler = copy.deepcopy(rig("lcm").pipe.scheduler)
    trajectory = bridge.sampler_trajectory(scheduler, 4)
    outputs, draws, z = [noise(k) for k in range(4)], [noise(10 + k) for k in range(3)], noise(20)

    def denoise(z, timestep):
        k = trajectory.timesteps.index(timestep)
        return bridge.predictions(outputs[k], z, trajectory.abar[k], "epsilon")

    scheduler.set_timesteps(4)
    expected = z
    for k, timestep in enumerate(scheduler.timesteps):
        scheduler_noise = draws[k] if k < 3 else None
        step = scheduler.step(outputs[k], timestep, expected, generator=torch.Generator().manual_seed(0))
        expected = step.denoised
        if scheduler_noise is not None:  # what the scheduler drew is exchanged for the given draw
            expected = bridge.noised(expected, scheduler_noise, trajectory.abar[k + 1])
    path = bridge.lcm_path(denoise, z, None, [0.0] * 5, trajectory, draws)
    torch.testing.assert_close(path, expected)


def test_lcm_renoising_is_diffusers_own(rig):
    scheduler = copy.deepcopy(rig("lcm").pipe.scheduler)
    trajectory = bridge.sampler_trajectory(scheduler, 4)
    scheduler.set_timesteps(4)
    z, output = noise(1), noise(2)
    step = scheduler.step(output, scheduler.timesteps[0], z, generator=torch.Generator().manual_seed(3))
    draw = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(bridge.noised(step.denoised, draw, trajectory.abar[1]), step.prev_sample)


@pytest.mark.parametrize(
    "injection", [Injection("persistent"), Injection("late", start=0.4), Injection("final")]
)
def test_the_detached_path_gives_the_latents_of_the_marked_pipeline(rig, injection):
    """Training and inference share one injection: the same latents, guidance and all."""
    sd = rig("sd")
    codec = tiny_codec(injection=injection)
    secret, steps = "0123456789abcdef", 10
    start = noise(5, 1, 4, 8, 8)
    with watermark(sd.pipe, codec, secret, pixel=False, verify=None):
        expected = sd.run(steps, latents=start)
    arguments = sd.arguments
    denoise = bridge.denoiser_of(
        sd.pipe.unet,
        sd.pipe.scheduler,
        arguments["prompt_embeds"],
        empty=arguments["negative_prompt_embeds"],
        guidance=arguments["guidance_scale"],
    )
    trajectory = bridge.sampler_trajectory(sd.pipe.scheduler, steps)
    weights = injection.weights(trajectory.times)
    found = bridge.detached_ddim_path(denoise, start, codec.delta(secret), weights, trajectory)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("path", ["lcm", "ddim"])
def test_gradients_reach_delta_and_never_the_denoiser(rig, path, checkpointing):
    unet, scheduler = copy.deepcopy(rig("sd").pipe.unet).requires_grad_(False), rig("sd").pipe.scheduler
    denoise = bridge.denoiser_of(unet, scheduler, _embeds(1, 2, 7, 32))
    trajectory = bridge.sampler_trajectory(scheduler, 3)
    weights = Injection("persistent").weights(trajectory.times)
    delta = noise(3).requires_grad_()
    if path == "lcm":
        z0 = bridge.lcm_path(
            denoise, noise(1), delta, weights, trajectory, [noise(7), noise(8)], checkpointing
        )
    else:
        z0 = bridge.ddim_path(denoise, noise(1), delta, weights, trajectory, checkpointing)
    z0.square().sum().backward()
    assert delta.grad.abs().min() > 0
    assert all(parameter.grad is None for parameter in unet.parameters())


def test_checkpointing_changes_no_gradient(denoise, rig):
    trajectory = bridge.late_trajectory(rig("sd").pipe.scheduler, 3, 0.2)
    weights = Injection("late").weights(trajectory.times)
    grads = []
    for checkpointing in (False, True):
        delta = noise(3).requires_grad_()
        bridge.ddim_path(denoise, noise(1), delta, weights, trajectory, checkpointing).sum().backward()
        grads.append(delta.grad)
    torch.testing.assert_close(*grads)


def test_the_detached_path_carries_no_gradient(denoise, rig):
    trajectory = bridge.sampler_trajectory(rig("sd").pipe.scheduler, 2)
    delta = noise(3).requires_grad_()
    assert not bridge.detached_ddim_path(denoise, noise(1), delta, [0.5, 0.5, 0.0], trajectory).requires_grad


def test_marked_and_clean_share_their_draws(denoise, rig):
    trajectory = bridge.sampler_trajectory(rig("sd").pipe.scheduler, 3)
    draws, weights = [noise(7), noise(8)], [1.0, 1.0, 1.0, 0.0]
    clean = bridge.lcm_path(denoise, noise(1), None, weights, trajectory, draws)
    marked = bridge.lcm_path(denoise, noise(1), torch.zeros(SHAPE), weights, trajectory, draws)
    assert torch.equal(marked, clean)
    with pytest.raises(ValueError, match="re-noise 2 times, got 1 draws"):
        bridge.lcm_path(denoise, noise(1), None, weights, trajectory, draws[:1])


def test_a_late_bridge_delivers_the_dose_in_even_shares(rig):
    trajectory = bridge.late_trajectory(rig("sd").pipe.scheduler, 3, 0.2)
    assert trajectory.timesteps == (200, 133, 67)
    assert Injection("late", start=0.2).weights(trajectory.times) == pytest.approx(
        [0.335, 0.33, 0.335, 0], abs=1e-9
    )
    assert bridge.late_trajectory(rig("sd").pipe.scheduler, 2, 1.0).timesteps == (999, 500)


def test_final_injection_has_no_denoiser_in_between():
    empty = bridge.Trajectory((), (1.0,))
    z0, delta = noise(1), noise(2)
    weights = Injection("final", dose=0.5).weights(np.array([0.0]))[-1:]
    torch.testing.assert_close(bridge.ddim_path(None, z0, delta, weights, empty), z0 + 0.5 * delta)


def test_inversion_finds_the_noise_of_a_linear_denoiser():
    """A denoiser whose noise does not depend on the latents is inverted exactly."""
    trajectory = bridge.sampler_trajectory(_sd_scheduler(), 20)
    constant = noise(4)

    def denoise(z, timestep):
        level = trajectory.abar[trajectory.timesteps.index(timestep)]
        return bridge.predictions(constant, z, level, "epsilon")

    start = noise(1)
    z0 = bridge.detached_ddim_path(denoise, start, None, [0.0] * 21, trajectory)
    torch.testing.assert_close(bridge.ddim_inversion(denoise, z0, trajectory), start, atol=1e-3, rtol=1e-3)


def test_what_cannot_be_denoised_is_named(rig):
    unet = rig("sd").pipe.unet
    with pytest.raises(ValueError, match="guidance 7.5 needs the embeddings of the empty prompt"):
        bridge.denoiser_of(unet, _sd_scheduler(), _embeds(1, 1, 7, 32), guidance=7.5)
    flow = type("Flow", (), {"config": type("C", (), {"prediction_type": "flow_prediction"})})
    with pytest.raises(ValueError, match="'flow_prediction' is not supported"):
        bridge.denoiser_of(unet, flow, _embeds(1, 1, 7, 32))
