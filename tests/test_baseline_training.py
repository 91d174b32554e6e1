"""Training of the baselines at tiny size: learns, stops and goes on, saves what the methods load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffmark.baselines.stable_signature import SignedDecoder
from diffmark.baselines.training import stable_signature, train_baseline
from diffmark.baselines.training.aqualora import AquaLoraConfig, WatermarkJob
from diffmark.baselines.training.common import annealed, train_stage
from diffmark.baselines.training.distortions import in_a_row, one_of, perspective
from diffmark.baselines.training.stable_signature import (
    StableSignatureConfig,
    masked_error,
    train_stable_signature,
)
from diffmark.baselines.training.stegastamp import StegaStampConfig, StegaStampJob, train_stegastamp
from diffmark.training.loop import LoopConfig
from diffmark.training.run_file import read_run_file
from diffmark.vista.autoencoder import PatchAutoencoder

CONFIGS = Path(__file__).parents[1] / "configs" / "baselines"
LOOP = LoopConfig(steps=2, batch=2, learning_rate=1e-3, warmup=1, decay=1, log_every=1, save_every=1)
KINDS = {
    "stegastamp": StegaStampConfig,
    "stable-signature": StableSignatureConfig,
    "aqualora": AquaLoraConfig,
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_run_file_can_be_read_and_says_its_command(name):
    path = CONFIGS / f"{name}.toml"
    head = path.read_text().splitlines()[:3]
    assert head[0].startswith(f"# diffmark baselines train {name} configs/baselines/{name}.toml")
    assert head[1].startswith("# time:")
    assert head[2].startswith("# score:")
    assert read_run_file(path, KINDS[name]).scenes > 0


def test_unknown_baselines_are_errors(tmp_path):
    with pytest.raises(ValueError, match="no baseline 'magic'"):
        train_baseline("magic", CONFIGS / "stegastamp.toml", tmp_path)


def test_annealing():
    assert annealed(0.4, 0.1, 0) == pytest.approx(0.4)
    assert annealed(0.4, 0.1, 0.5) == pytest.approx(0.2)
    assert annealed(0.4, 0.1, 3) == pytest.approx(0.1)


@pytest.mark.parametrize("distort", [in_a_row, lambda *a: one_of(("jpeg", "blur"), *a)])
def test_distortions_repeat_and_let_gradients_pass(distort):
    pixels = torch.rand(2, 3, 64, 64, requires_grad=True)
    first = distort(pixels, 1.0, torch.Generator().manual_seed(1))
    again = distort(pixels, 1.0, torch.Generator().manual_seed(1))
    assert torch.equal(first, again)
    assert first.shape == pixels.shape
    first.sum().backward()
    assert pixels.grad.abs().sum() > 0


def test_a_warp_without_strength_is_none():
    pixels = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(perspective(pixels, 0.0, torch.Generator()), pixels, atol=1e-3, rtol=0)
    assert (perspective(pixels, 1.0, torch.Generator()) - pixels).abs().mean() > 0.01


def test_texture_hides_errors():
    flat, busy = torch.zeros(1, 3, 32, 32), torch.rand(1, 3, 32, 32)
    assert masked_error(flat + 0.05, flat) > 3 * masked_error(busy + 0.05, busy)


def test_stegastamp_run_goes_on_where_it_stopped(tmp_path):
    config = StegaStampConfig(LOOP, bits=4, width=16, scenes=3)
    assert train_stegastamp(config, tmp_path / "stopped", None, stop_after=1) is None
    assert not (tmp_path / "stopped" / "model").exists()
    stopped = train_stegastamp(config, tmp_path / "stopped", None)
    whole = train_stegastamp(config, tmp_path / "whole", None)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, stopped.state_dict()[name])
    assert (tmp_path / "whole" / "model" / "config.json").exists()


def test_stegastamp_learns_its_bits(tmp_path):
    loop = replace(LOOP, steps=30, batch=4, learning_rate=5e-3, decay=5, log_every=30, save_every=30)
    config = StegaStampConfig(
        loop, bits=4, width=16, first_rms=0.6, rms=0.5, distortion_from=0.9, quiet_at=0.95
    )
    job = StegaStampJob(config, np.full((4, 256, 256, 3), 128, np.uint8), [])
    assert train_stage(job, loop, tmp_path, None)
    line = (tmp_path / "log.jsonl").read_text()
    assert float(line.split('"accuracy": ')[1].split(",")[0]) > 0.7  # mean of the run; half is chance


def test_stable_signature_run_has_two_stages(tmp_path, monkeypatch):
    torch.manual_seed(0)
    vae = PatchAutoencoder(block_out_channels=(4, 4, 8, 16), layers_per_block=1).eval()
    monkeypatch.setattr(stable_signature, "load_autoencoder", lambda: vae)
    config = StableSignatureConfig(LOOP, LOOP, bits=6, width=16, scenes=3, crop=64, whitening_images=16)
    assert train_stable_signature(config, tmp_path, None, stop_after=1) is None
    model = train_stable_signature(config, tmp_path, None)
    assert model is not None
    loaded = SignedDecoder.from_pretrained(tmp_path / "model")
    assert len(loaded.config["key"]) == 6
    z = torch.randn(1, 4, 4, 4)
    torch.testing.assert_close(loaded.decode(z), model.decode(z))
    assert not torch.equal(model.decode(z), vae.decode(z).sample)  # the second stage changed it


def test_latent_watermark_learns_its_bits(tmp_path):
    loop = replace(LOOP, steps=40, batch=16, learning_rate=1e-2, decay=10, log_every=10, save_every=40)
    config = AquaLoraConfig(loop, LOOP, bits=8, first_rms=2.0, rms=1.5)
    job = WatermarkJob(config, torch.randn(16, 4, 16, 16))
    assert train_stage(job, loop, tmp_path, None)
    last = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert float(last.split('"accuracy": ')[1].rstrip("}")) > 0.95
