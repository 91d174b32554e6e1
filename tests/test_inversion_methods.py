"""Tree-Ring, RingID and Shallow Diffuse on a tiny pipeline with an exact denoiser: inversion is then exact too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from diffmark.baselines.gaussian_shading import GaussianShading
from diffmark.baselines.inversion import (
    from_spectrum,
    hermitian,
    mirrored,
    one_of_each_pair,
    parted,
    pattern_p_value,
    spectrum,
)
from diffmark.baselines.prc import CodeKey, PseudorandomCode, solve
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
        decoded = (pixels / 6).clamp(-1, 1)
        return type("Output", (), {"sample": decoded})() if return_dict else (decoded,)


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


KINDS = [TreeRing, RingID, ShallowDiffuse, GaussianShading, PseudorandomCode]


@pytest.mark.parametrize("kind", KINDS)
def test_marked_images_score_higher_than_plain_ones(pipe, kind):
    method = kind(pipe, Sampling(steps=5, guidance=1.0), inversion_steps=5)
    chosen = specs(4, method.bits)
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
    nobody = np.zeros((500, 0), np.uint8)
    p_values = method.p_values(*method.read_state(noise, nobody), nobody)
    for rate in (0.3, 0.1, 0.03):
        passed = int((p_values <= rate).sum())
        assert stats.binomtest(passed, 500, rate, "greater").pvalue > 1e-3
    assert (p_values <= 0.3).any()
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
    before, part = parted(whole, 0.3)
    assert before.timesteps + part.timesteps == whole.timesteps
    assert before.abar[-1] == part.abar[0]
    assert part.times[0] <= 0.3 < whole.times[-len(part.timesteps) - 1]
    assert part.abar[-1] == whole.abar[-1]


def test_ring_id_reads_the_nearest_key_of_all(pipe):
    """A margin's sign is that of the key that is nearest in the nearer of its channels, as the authors decide."""
    method = RingID(pipe)
    found = torch.randn(3, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(4))
    margins, _ = method.read_state(found, np.zeros((3, 11), np.uint8))
    spectra = spectrum(found)[..., method.on_ring]
    for one, read in zip(spectra, margins, strict=True):
        rings = torch.stack([(one[-1] - method.rings(key)).abs().mean() for key in method.keys])
        noise = (one[0] - method.noises).abs().mean(dim=1)
        nearest = int(torch.minimum(rings, noise).argmin())
        assert np.array_equal(read > 0, method.keys[nearest].astype(bool))
    assert [method.number(key) for key in method.keys] == list(range(2**11))


def test_rings_lie_in_the_middle_of_the_latents(pipe):
    """What rotation turns out of a picture is its corners: there must be little of the rings there."""
    method = RingID(pipe)
    pattern = torch.zeros(SIDE, SIDE, dtype=torch.complex64)
    pattern[method.on_ring] = method.rings(np.ones(11, np.uint8)).to(pattern.dtype)
    energy = from_spectrum(pattern).square()
    middle = energy[SIDE // 4 : 3 * SIDE // 4, SIDE // 4 : 3 * SIDE // 4].sum() / energy.sum()
    assert middle > 0.8
    turned = torch.rot90(from_spectrum(pattern)[1:, 1:], 1, (0, 1))  # about the cell that holds the centre
    torch.testing.assert_close(turned, from_spectrum(pattern)[1:, 1:], atol=1e-3, rtol=1e-3)


def test_tree_ring_has_a_complex_key_and_ranks_by_its_distance(pipe):
    method = TreeRing(pipe)
    assert method.pattern[method.mask].imag.abs().min() > 0
    state = method.imprint(torch.randn(1, 4, SIDE, SIDE), unseen_specs(1)[0])
    margins, scores = method.read_state(state, np.zeros((1, 0), np.uint8))
    by_hand = (spectrum(state[:, -1])[0, method.mask] - method.pattern[method.mask]).abs().mean()
    assert scores[0] == pytest.approx(-float(by_hand))
    assert margins.shape == (1, 1)
    assert scores[0] > method.read_state(torch.randn(1, 4, SIDE, SIDE), np.zeros((1, 0), np.uint8))[1][0]


@pytest.mark.parametrize("kind", [GaussianShading, PseudorandomCode])
def test_latents_of_random_messages_are_gaussian(pipe, kind):
    method, rng = kind(pipe), np.random.default_rng(0)
    drawn = []
    for seed in range(20):
        spec = ImageSpec("", rng.integers(0, 2, method.bits).astype(np.uint8), seed)
        drawn.append(method.imprint(method.start(spec), spec).flatten())
    assert stats.kstest(torch.cat(drawn).numpy(), "norm").pvalue > 1e-3


def test_gaussian_shading_lets_the_copies_of_a_bit_vote(pipe):
    method = GaussianShading(pipe)
    (spec,) = specs(1, 256)
    z = method.imprint(method.start(spec), spec)
    margins, scores = method.read_state(z, spec.secret[None])
    assert scores[0] == 256
    assert set(np.abs(margins).ravel()) == {16.0}
    few = torch.where(torch.rand(z.shape, generator=torch.Generator().manual_seed(0)) < 0.2, -z, z)
    assert method.read_state(few, spec.secret[None])[1][0] > 245


def test_prc_reads_its_message_through_errors_and_says_nothing_of_noise():
    rng = np.random.default_rng(0)
    key = CodeKey.drawn(4096, 64, rng)
    assert not (key.generator[key.checks].sum(axis=1) % 2).any()  # every word of the code passes every check
    message = rng.integers(0, 2, 64).astype(np.uint8)
    z = np.abs(rng.normal(size=4096)) * (1 - 2.0 * key.word(message, rng))
    received = key.expected(np.where(rng.random(4096) < 0.1, -z, z))
    assert np.array_equal(key.message(received), message)
    assert np.exp(-(key.evidence(received) ** 2)) < 1e-6
    noise = [key.expected(rng.normal(size=4096)) for _ in range(200)]
    assert (
        np.mean([key.evidence(one) > np.sqrt(np.log(10)) for one in noise]) <= 0.1
    )  # a bound holds with room
    assert all(key.message(one) is None for one in noise[:20])


def test_solving_takes_the_first_independent_rows():
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 2, (40, 12)).astype(np.uint8)
    wanted = rng.integers(0, 2, 12).astype(np.uint8)
    bits = (rows @ wanted % 2).astype(np.uint8)
    bits[30:] ^= 1  # wrong ones come last
    assert np.array_equal(solve(rows, bits, np.arange(40)), wanted)
    assert solve(rows[:8], bits[:8], np.arange(8)) is None


def test_settings_of_the_sampling_methods(pipe):
    assert TreeRing(pipe, radius=3).mask.sum() < TreeRing(pipe).mask.sum()
    assert ShallowDiffuse(pipe, radius=2).mask.sum() < ShallowDiffuse(pipe).mask.sum()
    few, many = TreeRing(pipe, inversion_steps=5), TreeRing(pipe, inversion_steps=10)
    assert few.fingerprint() == many.fingerprint()  # pictures do not depend on how they are read
    assert few.reader() != many.reader()
    assert len(TreeRing(pipe, Sampling(steps=7)).trajectory.timesteps) == 7
