from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from test_training import latents, reached, tiny_config, weights

from diffmark.latent.codec import Codec
from diffmark.latent.dosing import Dosing
from diffmark.training.config import DeltaConfig, PretrainingConfig
from diffmark.training.draws import Draws
from diffmark.training.optimisation import make_accelerator
from diffmark.training.pretraining import perturb, pretrain, pretraining_terms, shift_geometry


def config_of(**more):
    settings = {"steps": 6, "batch": 4, "stop_accuracy": 2.0}
    return tiny_config(pretraining=PretrainingConfig(**{**settings, **more}))


def run(config, folder, **more):
    return pretrain(config, folder, accelerator=make_accelerator("fp32", cpu=True), **more)


def test_cross_entropies_reach_both_networks_and_orthogonality_the_encoder():
    config = config_of()
    torch.manual_seed(0)
    codec = Codec(config.codec).train()
    terms, _ = pretraining_terms(codec, config, 0, Draws(0, 0), 4, None)
    assert {name: reached(term, codec) for name, term in terms.items()} == {
        "clean": {"encoder", "decoder"},
        "noisy": {"encoder", "decoder"},
        "orth": {"encoder"},
    }


def test_noise_rises_over_the_run():
    config = config_of(steps=10, noise_start=0.1, noise_end=0.6)
    codec = Codec(config.codec)
    figures = [pretraining_terms(codec, config, step, Draws(0, step), 4, None)[1] for step in (0, 5)]
    assert [f["sigma_n"].item() for f in figures] == pytest.approx([0.1, 0.35])


def test_delta_is_the_encoders_own():
    config = config_of()
    codec = Codec(config.codec).eval()
    secrets = Draws(0, 0).secrets(3, 16)
    plain = perturb(codec.encoder, secrets, Draws(0, 1), DeltaConfig(variational=False), 0.1)
    assert torch.equal(plain.delta, codec.encoder(secrets))
    first, second = (perturb(codec.encoder, secrets, Draws(0, 1), DeltaConfig(), 0.1) for _ in range(2))
    assert torch.equal(first.delta, second.delta)
    assert not torch.equal(first.delta, plain.delta)


def test_alpha_does_not_wander_where_delta_is_normalised():
    """Its gradient would be rounding noise; a sign that turns undoes a training."""
    codec = Codec(config_of().codec)
    secrets = Draws(0, 0).secrets(3, 16)
    perturb(codec.encoder, secrets, Draws(0, 1), DeltaConfig(normalise=True), 0.1).delta[0].sum().backward()
    assert codec.encoder.alpha.grad is None
    assert codec.encoder.mean.weight.grad is not None


def test_a_codec_with_a_deviation_keeps_it_after_training(tmp_path):
    config = config_of()
    codec = Codec(config.codec, Dosing(deviation=0.2)).eval()
    codec.save_pretrained(tmp_path)
    for one in (codec, Codec.from_pretrained(tmp_path)):
        delta = one.delta(Draws(0, 0).secrets(3, 16))
        torch.testing.assert_close(delta.std(dim=(1, 2, 3)), torch.full((3,), 0.2))


def test_pretraining_learns_and_stops_early(tmp_path):
    config = config_of(
        steps=300,
        batch=16,
        encoder_rate=5e-3,
        decoder_rate=5e-3,
        stop_accuracy=0.9,
        stop_after=3,
        noise_end=0.1,
    )
    config = replace(
        config,
        codec=replace(config.codec, length=8, embed_dim=16),
        delta=DeltaConfig(variational=False, normalise=True, sigma_start=1.0),
        log=replace(config.log, log_every=20, save_every=200),
    )
    run(config, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] < 300
    assert lines[-1]["accuracy"] > 0.8
    assert Codec.from_pretrained(tmp_path / "codec").config.length == 8


def test_interrupted_and_resumed_is_uninterrupted(tmp_path):
    config = config_of(host=True)
    whole = run(config, tmp_path / "whole", hosts=latents())
    run(config, tmp_path / "parts", hosts=latents(), stop_after=4)
    parts = run(config, tmp_path / "parts", hosts=latents())
    assert torch.equal(weights(whole), weights(parts))


def test_a_normalised_codec_leaves_pretraining_with_its_last_strength(tmp_path):
    config = replace(
        config_of(sigma_start=0.4, sigma_end=0.2), delta=DeltaConfig(variational=False, normalise=True)
    )
    assert run(config, tmp_path).dosing.deviation == pytest.approx(0.2)
    assert Codec.from_pretrained(tmp_path / "codec").dosing.deviation == pytest.approx(0.2)
    assert run(config_of(), tmp_path / "paper").dosing.deviation is None


def test_latents_are_moved_by_more_and_more():
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    smooth = torch.stack([rows, columns, rows * columns, rows - columns])[None].repeat(8, 1, 1, 1)
    inner = (..., slice(8, 24), slice(8, 24))
    distances = [
        (shift_geometry(smooth, strength, Draws(0, 0)) - smooth)[inner].abs().mean()
        for strength in (0, 0.1, 0.3)
    ]
    assert distances[0] < 1e-6
    assert distances[0] < distances[1] < distances[2]


def test_a_share_of_a_batch_is_moved_and_logged_apart():
    config = config_of(geometry=0.2, geometry_warmup=1, geometry_share=0.25)
    _, figures = pretraining_terms(Codec(config.codec), config, 1, Draws(0, 1), 8, None)
    assert {"accuracy_moved", "accuracy_still"} <= figures.keys()


def test_a_share_of_a_batch_is_seen_smooth_and_logged_apart():
    config = config_of(smooth_share=0.5)
    codec = Codec(config.codec).train()
    terms, figures = pretraining_terms(codec, config, 0, Draws(0, 0), 4, None)
    plain = pretraining_terms(codec, config_of(), 0, Draws(0, 0), 4, None)[0]
    assert 0 <= figures["accuracy_smoothed"] <= 1
    assert terms["noisy"] != plain["noisy"]


def test_hosts_are_asked_for(tmp_path):
    with pytest.raises(ValueError, match="give data.pictures"):
        run(config_of(host=True), tmp_path)
