"""Tree-Ring, RingID and Shallow Diffuse on a tiny pipeline with an exact denoiser: inversion is then exact too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from diffmark.baselines.inversion import (
    below,
    from_spectrum,
    hermitian,
    mirrored,
    one_of_each_pair,
    pattern_p_value,
    spectrum,
)
from diffmark.baselines.ring_id import RingID
from diffmark.baselines.shallow_diffuse import ShallowDiffuse
from diffmark.baselines.tree_ring import TreeRing
from diffmark.evaluation.image_model import unseen_specs
from diffmark.latent.bridge import sampler_trajectory
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.mark.loading import load_pipeline

SIDE = 32


class Mirror(torch.nn.Module):
    """A vae that loses only what eight bits lose: 8x8 cells repeat three channels, their corner the fourth."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.anchor = torch.nn.Parameter(torch.zeros(()))

    def encode(self, pixels):
        latents = torch.cat([pixels[..., ::8, ::8], pixels[:, :1, 4::8, 4::8]], dim=1) * 6
        return type("Output", (), {"latents": latents})()

    def decode(self, latents, return_dict=True, generator=None):
        wide = latents.repeat_interleave(8, -1).repeat_interleave(8, -2)
        corner = torch.arange(8 * SIDE) % 8 >= 4
        pixels = wide[:, :3].clone()
        pixels[:, 0] = torch.where(corner[:, None] & corner, wide[:, 3], pixels[:, 0])
        return ((pixels / 6).clamp(-1, 1),)


@pytest.fixture(scope="module")
def pipe(model_folder):
    """The tiny pipeline with a denoiser that predicts no noise and the mirror for a vae."""
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)

    def silent(sample, *arguments, return_dict=True, **options):
        zeros = torch.zeros_like(sample)
        return type("Output", (), {"sample": zeros})() if return_dict else (zeros,)

    pipe.unet.forward = silent
    pipe.unet.register_to_config(sample_size=SIDE)
    # A gentle schedule: with a silent denoiser z0 = z_T / sqrt(abar_T), which must fit into pixels.
    pipe.scheduler = type(pipe.scheduler)(
        beta_start=1e-5, beta_end=1e-5, clip_sample=False, set_alpha_to_one=True, steps_offset=1
    )
    config = type(pipe.vae.config)({**pipe.vae.config, "scaling_factor": 1.0})
    pipe.vae = Mirror(config)
    return pipe


def specs(count, bits=11):
    return [ImageSpec(spec.prompt, spec.secret[:bits], spec.seed) for spec in unseen_specs(count)]


@pytest.mark.parametrize("kind", [TreeRing, RingID, ShallowDiffuse])
def test_marked_images_score_higher_than_plain_ones(pipe, kind):
    method = kind(pipe, Sampling(steps=5, guidance=1.0), inversion_steps=5)
    chosen = specs(4)
    secrets = np.stack([spec.secret for spec in chosen])
    marked = method.generate_all(chosen)
    plain = method.paint(chosen, torch.cat([method.start(spec) for spec in chosen]))
    assert method.score(marked, secrets).min() > method.score(plain, secrets).max()
    p_values = method.p_values(*method.read_state(method.state(marked), secrets), secrets)
    assert p_values.max() <= 1e-3  # by the test of rings, or as all eleven are right
    assert method.generates
    assert method.fingerprint()["method"] == method.name


def test_ring_id_reads_its_key(pipe):
    method = RingID(pipe, Sampling(steps=5, guidance=1.0), inversion_steps=5)
    chosen = specs(6)
    margins = method.decode([method.generate(spec) for spec in chosen])
    assert margins.shape == (6, 11)
    assert np.array_equal(margins > 0, np.stack([spec.secret for spec in chosen]).astype(bool))


def test_inversion_finds_the_start(pipe):
    method = TreeRing(pipe, Sampling(steps=5, guidance=1.0), inversion_steps=5)
    (spec,) = specs(1)
    found = method.invert(method.paint([spec], method.start(spec)))
    torch.testing.assert_close(found, method.start(spec), atol=0.06, rtol=0)  # eight bits are the only loss


def test_start_is_what_the_pipeline_draws(pipe):
    method = TreeRing(pipe, Sampling(steps=2, guidance=1.0))
    (spec,) = specs(1)
    own = pipe(spec.prompt, num_inference_steps=2, guidance_scale=1.0,
               generator=torch.Generator().manual_seed(spec.seed)).images[0]  # fmt: skip
    assert np.array_equal(np.asarray(own), np.asarray(method.paint([spec], method.start(spec))[0]))


@pytest.mark.parametrize("kind", [TreeRing, ShallowDiffuse])
def test_p_values_of_noise_are_no_smaller_than_they_should_be(pipe, kind):
    """The variance is the observed one's, which makes the test careful: fewer pass than stated, but some do."""
    method = kind(pipe)
    noise = torch.randn(500, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    _, scores = method.read_state(noise, np.zeros((500, 0), np.uint8))
    for rate in (0.3, 0.1, 0.03):
        passed = int((10**-scores <= rate).sum())
        assert stats.binomtest(passed, 500, rate, "greater").pvalue > 1e-3
    assert (10**-scores <= 0.3).any()
    pattern = method.pattern[method.mask]
    assert pattern_p_value(pattern * 0.9, pattern) < 1e-6


def test_half_of_a_spectrum_says_all_of_a_real_signal():
    z = torch.randn(SIDE, SIDE)
    half = one_of_each_pair(SIDE)
    assert half.sum() == (SIDE**2 - 4) // 2  # four frequencies are their own opposites
    assert not (half & mirrored(half)).any()
    for transform in (spectrum, torch.fft.fft2):
        torch.testing.assert_close(hermitian(transform(z)), transform(z), atol=1e-4, rtol=1e-4)
    drawn = torch.randn(SIDE, SIDE, dtype=torch.complex64)
    torch.testing.assert_close(spectrum(from_spectrum(drawn)), hermitian(drawn), atol=1e-4, rtol=1e-4)


def test_presence_only_methods_do_not_decode(pipe):
    for kind in (TreeRing, ShallowDiffuse):
        with pytest.raises(TypeError, match="use score"):
            kind(pipe).decode([])


def test_spectra_and_trajectories(pipe):
    z = torch.randn(2, 4, 32, 32)
    torch.testing.assert_close(from_spectrum(spectrum(z)), z, atol=1e-5, rtol=1e-5)
    whole = sampler_trajectory(pipe.scheduler, 10)
    part = below(whole, 0.3)
    assert part.times[0] <= 0.3 < whole.times[-len(part.timesteps) - 1]
    assert part.abar[-1] == whole.abar[-1]


def test_ring_id_picks_the_nearest_of_all_its_keys(pipe):
    """Deciding ring by ring is the same as matching with each of the 2^11 patterns."""
    method = RingID(pipe)
    pool = (np.arange(2**11)[:, None] >> np.arange(11) & 1).astype(np.uint8)
    on_ring = method.ring.ge(3) & method.disc
    patterns = torch.stack([method.rings(key)[on_ring] for key in pool])
    assert len(torch.unique(patterns.real, dim=0)) == 2**11
    found = spectrum(torch.randn(3, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(4)))
    nearest = (found[:, -1, on_ring][:, None] - patterns).abs().square().sum(-1).argmin(1)
    assert np.array_equal(method._margins(found) > 0, pool[nearest].astype(bool))


def test_settings_of_the_sampling_methods(pipe):
    assert TreeRing(pipe, radius=3).mask.sum() < TreeRing(pipe).mask.sum()
    assert ShallowDiffuse(pipe, radius=2).mask.sum() < ShallowDiffuse(pipe).mask.sum()
    few, many = TreeRing(pipe, inversion_steps=5), TreeRing(pipe, inversion_steps=10)
    assert few.fingerprint() != many.fingerprint()
