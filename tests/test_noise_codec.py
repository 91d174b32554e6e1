"""A mark in the initial noise: patterns, sizes, pipelines, files, keys, training."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
import torch
from conftest import tiny_codec, tiny_noise_codec
from scipy.stats import chi2, kstest

from diffmark import Codec, Detector, cli, random_secrets, watermark
from diffmark.detection.latent_evidence import EvidenceMapper
from diffmark.keys.ring import KeyRing
from diffmark.latent.codec import NoiseCodec
from diffmark.latent.config import CodecConfig, NoiseConfig
from diffmark.latent.files import CodecError
from diffmark.latent.injection import Injection
from diffmark.latent.noise import KeyedPatterns, blind_p_value, energy, log_likelihood_ratios, mix, scores_of
from diffmark.latent.vae import encode
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.latents import mark_latents
from diffmark.mark.loading import load_pipeline
from diffmark.pixel.codec import MarkWarning
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.training.inversion import InversionConfig, load_pairs, make_pairs, train_reader
from diffmark.training.run_file import read_run_file

KEY, OTHER = OperatorKey(b"k" * 32), OperatorKey(b"o" * 32)
SHAPE = (4, 32, 32)


def noise(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, *(shape or SHAPE), generator=torch.Generator().manual_seed(seed))


def test_marked_noise_is_noise_and_carries_the_secret_under_its_key_alone():
    patterns, other = KeyedPatterns(KEY, 64, SHAPE), KeyedPatterns(OTHER, 64, SHAPE)
    secrets = random_secrets(100)
    marked = mix(noise(100), torch.from_numpy(patterns.write(secrets)), 0.6).numpy()
    assert marked.std() == pytest.approx(1, abs=0.01)
    assert kstest(marked[0].ravel(), "norm").pvalue > 1e-3
    read = patterns.read(marked)
    assert ((read[..., 1] > read[..., 0]) == secrets).mean() > 0.999
    chance = other.read(marked)
    assert abs(((chance[..., 1] > chance[..., 0]) == secrets).mean() - 0.5) < 0.03
    assert patterns.key_id == KEY.id != other.key_id


def test_bits_have_equally_many_places():
    counts = np.bincount(KeyedPatterns(KEY, 60, SHAPE).bit)
    assert len(counts) == 60
    assert counts.max() - counts.min() <= 1


def test_scores_of_unmarked_pictures_are_standard_normal_whatever_the_estimate_is():
    """Also where estimates are the same for all pictures, and strong in a few places."""
    habit = noise(1, seed=5).numpy() ** 3
    keys = [OperatorKey(bytes([i]) * 32) for i in range(40)]
    scores = np.concatenate([KeyedPatterns(key, 64, SHAPE).scores(habit) for key in keys]).ravel()
    assert kstest(scores, "norm").pvalue > 1e-3
    p = [blind_p_value(log_likelihood_ratios(row)) for row in scores.reshape(40, 64)]
    assert kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("scale", [0.3, 0.9, 1.0, 1.05, 2.0, 8.0])
def test_energy_is_told_by_the_ratios(scale):
    scores = np.random.default_rng(1).standard_normal(64) * scale
    ratios = log_likelihood_ratios(scores)
    assert energy(ratios) == pytest.approx(np.square(scores).sum(), rel=1e-6)
    assert scores_of(ratios) == pytest.approx(scores, rel=1e-6)
    assert blind_p_value(ratios) == pytest.approx(chi2.sf(np.square(scores).sum(), 64), rel=1e-4)
    assert ((ratios > 0) == (scores > 0)).all()


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (40, 96), (24, 32)])
def test_other_sizes_stay_white_and_carry_the_pattern(size):
    delta = noise(20, seed=1)
    marked = mix(noise(20, 4, *size, seed=2), delta, 0.7)
    assert float(marked.std()) == pytest.approx(1, abs=0.02)
    back = mix(torch.zeros_like(delta), marked, 1.0)  # its lowest frequencies at the native size
    agreement = torch.nn.functional.cosine_similarity(back.flatten(1), delta.flatten(1)).mean()
    kept = min(size[0], 32) * min(size[1], 32) / 1024
    assert float(agreement) == pytest.approx(0.7 * kept**0.5, abs=0.06)
    spectrum = torch.fft.fft2(marked).abs().square().mean((0, 1))
    assert float(spectrum.std() / spectrum.mean()) < 0.25


def test_files(tmp_path):
    codec = tiny_noise_codec()
    codec.provenance = {"steps": 3}
    again = Codec.from_pretrained(codec.save_pretrained(tmp_path / "codec"))
    assert isinstance(again, NoiseCodec)
    assert (again.config, again.dosing, again.provenance) == (codec.config, codec.dosing, {"steps": 3})
    z = noise(2, 4, 8, 8)
    assert torch.equal(again.decode(z), codec.eval().decode(z))
    assert codec.decode(noise(1, 4, 16, 12)).shape == (1, 4, 8, 8)
    with pytest.raises(ValueError, match="latents of shape"):
        codec.decode(noise(1, 3, 8, 8))
    path = tmp_path / "codec" / "config.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "kind": "nosuch"}))
    with pytest.raises(CodecError, match="does not describe a codec"):
        Codec.from_pretrained(tmp_path / "codec")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reader_widths": (8, 8)}, "three multiples of 8"),
        ({"reader_widths": (8, 12, 8)}, "three multiples of 8"),
        ({"height": 10}, "cannot be halved twice"),
        ({"length": 0}, "whole numbers"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        NoiseConfig(**arguments)


def test_doses():
    with pytest.raises(ValueError, match="at most 1"):
        Injection("initial", 1.2)
    with pytest.raises(ValueError, match="'initial'"):
        NoiseCodec(NoiseConfig(height=8, width=8), tiny_codec().dosing)
    assert Injection("initial", 0.5).weights([0.9, 0.5]).tolist() == [0.5, 0, 0]


# --- pipelines ---------------------------------------------------------------------------------------------------


def first_input(pipe, monkeypatch):
    """What the denoiser sees in its first step."""
    seen = []
    network = pipe.unet if getattr(pipe, "unet", None) is not None else pipe.transformer
    forward = network.forward

    def listen(sample=None, *args, **kwargs):
        sample = kwargs.pop("hidden_states") if sample is None else sample
        seen.append(sample.detach().clone())
        return forward(sample, *args, **kwargs)

    monkeypatch.setattr(network, "forward", listen)
    return seen


@pytest.mark.parametrize("name", ["sd", "sd_euler"])
def test_the_pattern_is_in_the_noise_before_the_first_step(rig, name, monkeypatch):
    pipeline, codec, secret = rig("sd"), tiny_noise_codec(), random_secrets(1)
    if name == "sd_euler":
        import diffusers

        euler = diffusers.EulerDiscreteScheduler.from_config(pipeline.pipe.scheduler.config)
        monkeypatch.setattr(pipeline.pipe, "scheduler", euler)
    seen = first_input(pipeline.pipe, monkeypatch)
    pipeline.run(guidance_scale=1)
    plain = seen[0][:1]
    seen.clear()
    with watermark(pipeline.pipe, codec, secret, pixel=False, verify=None):
        pipeline.run(guidance_scale=1)
    scale = 1.0
    if name == "sd_euler":  # the denoiser sees z / sqrt(sigma^2 + 1)
        sigma = float(pipeline.pipe.scheduler.init_noise_sigma)
        first = float(pipeline.pipe.scheduler.sigmas[0])
        scale = sigma / (first**2 + 1) ** 0.5
    assert torch.allclose(seen[0][:1], scale * mix(plain / scale, codec.delta(secret), 0.7), atol=1e-4)


def test_strength(rig):
    pipeline, codec, secret = rig("sd"), tiny_noise_codec(), random_secrets(1)
    plain = pipeline.run()
    with watermark(pipeline.pipe, codec, secret, strength=0, pixel=False):
        assert torch.equal(pipeline.run(), plain)
    with watermark(pipeline.pipe, codec, secret, strength=0.5, pixel=False, verify=None):
        weak = pipeline.run()
    with watermark(pipeline.pipe, codec, secret, pixel=False, verify=None):
        assert not torch.equal(pipeline.run(), weak)
    with (
        watermark(pipeline.pipe, codec, secret, strength=2, pixel=False, verify=None),
        pytest.raises(ValueError, match="strength is at most"),
    ):
        pipeline.run()
    assert torch.equal(pipeline.run(), plain)


def test_packed_latents_carry_it_too(rig, monkeypatch):
    pipeline = rig("flux")
    codec = NoiseCodec(NoiseConfig(height=8, width=8, channels=pipeline.channels, reader_widths=(8, 8, 8)))
    seen = first_input(pipeline.pipe, monkeypatch)
    plain = pipeline.run()
    secret = random_secrets(1)
    with watermark(pipeline.pipe, codec, secret, pixel=False, verify=None):
        assert not torch.equal(pipeline.run(), plain)
    assert seen[-1].shape == seen[0].shape


def test_what_cannot_be_marked(rig):
    codec, secret = tiny_noise_codec(), random_secrets(1)
    with pytest.raises(UnmarkableError, match="starts from a picture"):
        watermark(rig("img2img").pipe, codec, secret).__enter__()
    with pytest.raises(UnmarkableError, match="and no others"):
        watermark(rig("sd").pipe, codec, secret, injection=Injection("final")).__enter__()
    with pytest.raises(UnmarkableError, match="and no others"):
        watermark(rig("sd").pipe, tiny_codec(), secret, injection=Injection("initial", 0.5)).__enter__()
    with pytest.raises(UnmarkableError, match="gone by now"):
        mark_latents(codec, noise(1, 4, 8, 8), secret)


# --- reading -----------------------------------------------------------------------------------------------------


def test_older_keys_are_read_and_counted(rig, monkeypatch):
    """With a reader that sees the noise itself."""
    codec, secret = tiny_noise_codec(), random_secrets(1)
    detector = Detector(codec, rig("sd").pipe.vae, fpr=1e-3, ring=KeyRing((KEY, OTHER, PUBLIC_KEY), "test"))
    patterns = codec.keyed_by(OTHER)
    carried = mix(noise(1, 4, 8, 8), torch.from_numpy(patterns.write(secret)), 0.95).numpy()
    monkeypatch.setattr(detector, "_carried", lambda pixels: np.repeat(carried, len(pixels), 0))
    found = detector.detect(np.zeros((64, 64, 3), np.uint8), secret)
    assert found.marked
    assert found.key_id == OTHER.id
    assert found.tries == 3
    assert len(found.others) == 2
    blind = detector.detect(np.zeros((64, 64, 3), np.uint8))
    assert blind.test == "blind"
    assert blind.score == pytest.approx(np.square(patterns.scores(carried)).sum(), rel=1e-4)


def test_the_kinds_do_not_mix(tmp_path):
    """The settings of one kind do not describe the other."""
    with pytest.raises(TypeError):
        NoiseCodec.of_config({"decoder_widths": (8,)})
    assert CodecConfig().image_size == NoiseConfig().image_size


def test_maps_show_where_the_noise_is_the_secrets(rig, monkeypatch):
    """Scores are standard normals where there is no mark, and high where there is."""
    codec, secret = tiny_noise_codec(), random_secrets(1)
    detector = Detector(codec, rig("sd").pipe.vae)
    mapper = EvidenceMapper(detector)
    estimate = noise(1, 4, 8, 8, seed=7)
    estimate[..., :4] = codec.delta(secret)[..., :4]
    monkeypatch.setattr(codec, "decode", lambda z: estimate)
    scores = mapper.map(np.zeros((64, 64, 3), np.uint8), secret[0]).scores
    assert scores[:, :3].min() > 2
    assert scores[2:-2, 1:3].min() > 4
    assert np.abs(scores[:, 6:]).max() < 4
    estimate = noise(1, 4, 8, 8, seed=8)
    unmarked = [mapper.map(np.zeros((64, 64, 3), np.uint8), other).scores for other in random_secrets(50)]
    assert np.std(unmarked) == pytest.approx(1, abs=0.15)
    with pytest.raises(ValueError, match="one way"):
        EvidenceMapper(detector, "occlusion")


# --- training ----------------------------------------------------------------------------------------------------

RUN = """
held_out = 16
[model]
pipeline = "{model}"
[codec]
height = 8
width = 8
reader_widths = [8, 8, 8]
[pairs]
pipeline = 48
bridge = 0
prompts = "{prompts}"
steps = [2]
guidance = [3.0]
[loop]
steps = {steps}
batch = 4
learning_rate = 1e-3
warmup = 2
decay = 2
ema = 0.9
log_every = 1
save_every = 2
"""


def run_file(tmp_path, model_folder, steps):
    (tmp_path / "prompts.txt").write_text("a lake\nhills\n")
    path = tmp_path / f"run{steps}.toml"
    path.write_text(RUN.format(model=model_folder, prompts=tmp_path / "prompts.txt", steps=steps))
    return path


def test_a_users_model_from_pairs_to_a_detected_picture(tmp_path, model_folder, monkeypatch, capsys):
    def run(*words, codes=(0, None)):
        monkeypatch.setattr(sys, "argv", ["diffmark", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        assert stop.value.code in codes, printed.err
        return printed.out

    config, out = run_file(tmp_path, model_folder, 4), tmp_path / "run"
    assert "2 files" in run("train", "noise", "--config", config, "--out", out, "--share", "1/2")
    run("train", "noise", "--config", config, "--out", out)
    codec = Codec.from_pretrained(out / "codec")
    assert codec.provenance["pairs"] == 32
    assert int((codec.decoder.common.norm(dim=1) > 0.5).sum()) == 8  # of the 128 views of unmarked pictures
    assert set(codec.provenance["measured"]) == {"read", "attacked", "regenerated", "rinsed"}
    secret = "0123456789abcdef"
    shared = ("--codec", out / "codec", "--secret", secret)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MarkWarning)  # four steps of training read nothing
        run("generate", "a lake", "--model", model_folder, "--steps", 2, "--out", tmp_path / "made", *shared)
    (picture,) = (tmp_path / "made").glob("*.png")
    found = json.loads(
        run("detect", picture, "--vae", model_folder, *shared, "--json", codes=(1,))
    )  # not marked
    assert found["test"] == "secret"


def test_training_goes_on_where_it_was_stopped(tmp_path, model_folder):
    config = read_run_file(run_file(tmp_path, model_folder, 4), InversionConfig)
    pairs = tmp_path / "pairs"
    whole = train_reader(config, tmp_path / "whole", pairs)
    train_reader(config, tmp_path / "parts", pairs, stop_after=2)
    parts = train_reader(config, tmp_path / "parts", pairs)
    for name, weight in whole.decoder.state_dict().items():
        assert torch.equal(weight, parts.decoder.state_dict()[name]), name


def test_pairs_are_known_noise_and_its_picture(tmp_path, model_folder):
    """z0 of a pair is what the pipeline makes of its z_T, and every process makes the same pair."""
    config = read_run_file(run_file(tmp_path, model_folder, 4), InversionConfig)
    first, second = make_pairs(config, tmp_path / "a")[:1], make_pairs(config, tmp_path / "b", "1/3")
    (noise, views), (again, _) = load_pairs(first), load_pairs(second)
    assert torch.equal(noise, again)
    assert float(noise.float().std()) == pytest.approx(1, abs=0.05)
    assert views.shape == (16, 4, 4, 8, 8)
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    made = pipe(
        ["a lake", "hills"] * 8,
        latents=noise.float(),
        num_inference_steps=2,
        guidance_scale=3.0,
        output_type="pt",
    ).images
    z0 = encode(pipe.vae, 2 * made - 1)
    assert torch.nn.functional.cosine_similarity(z0.flatten(1), views[:, 0].float().flatten(1)).min() > 0.98


def test_bad_run_files(tmp_path, model_folder):
    good = run_file(tmp_path, model_folder, 4).read_text()
    for old, new, message in (
        ("bridge = 0", "bridge = 32", "give model.lcm"),
        ("pipeline = 48", "pipeline = 8", "at least 32 pairs"),
        ("bridge = 0", 'bridge = 0\nattacks = ["nosuch"]', "there is no 'nosuch'"),
        ("bridge = 0", 'bridge = 0\ncompression = "other"', "compression is vista"),
        ("held_out = 16", "heldout = 16", "unknown key"),
    ):
        path = tmp_path / "bad.toml"
        path.write_text(good.replace(old, new))
        with pytest.raises(ValueError, match=message):
            make_pairs(read_run_file(path, InversionConfig), tmp_path / "bad")
