"""Measuring and publishing a family's codec, end to end with small real networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from diffmark.codec import Codec, CodecConfig
from diffmark.detection import Detector
from diffmark.injection import Injection
from diffmark.training import family_measurement
from diffmark.training.family_measurement import compare, measure_family, suggested_strength
from diffmark.training.family_publication import load_half, publish_family
from diffmark.vista import load_autoencoder

CONFIG = CodecConfig(
    height=8,
    width=8,
    embed_dim=64,
    encoder_widths=(8,),
    decoder_widths=(8, 16),
    decoder_hidden=(),
    injection=Injection("final"),
    deviation=0.2,
)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("held_out"), np.random.default_rng(0)
    made = []
    for number in range(3):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        made.append(root / f"{number}.png")
        coarse.resize((80, 64), Image.Resampling.BICUBIC).save(made[-1])
    return made


@pytest.fixture(scope="module")
def measured(paths):
    torch.manual_seed(0)
    patch = pytest.MonkeyPatch()
    patch.setattr(family_measurement, "ENLARGED", 96)
    patch.setattr(family_measurement, "SIZES", ((64, 64), (40, 72)))
    own = load_autoencoder()
    found, codec = measure_family(Codec(CONFIG), own, own, paths, marked=2, same_seed=2, negatives=40)
    patch.undo()
    return found, codec, own


def test_strength_costs_psnr(measured):
    found, _, _ = measured
    for curve in (found["embedded"], found["same_seed"]):
        ratios = [row["psnr"] for row in curve]
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] - ratios[-1] > 6  # four times the strength


def test_the_least_strength_that_reads_enough_is_suggested(measured):
    found, codec, _ = measured
    assert found["strength"] == codec.config.embed_strength == 2.0  # nothing is read at any

    def suggested(*accuracies):
        strengths = (0.5, 1.0, 1.41, 2.0)
        return suggested_strength(
            [{"strength": s, "bit_accuracy": a} for s, a in zip(strengths, accuracies, strict=True)]
        )

    assert suggested(0.9, 0.97, 0.985, 0.99) == 1.41
    assert suggested(0.99, 0.99, 0.99, 0.99) == 1.0  # attacks need a reserve


def test_an_untrained_codec_reads_by_chance(measured):
    found, codec, _ = measured
    assert abs(found["negatives"]["bit_accuracy"] - 0.5) < 0.06
    assert found["negatives"]["crops"] == codec.calibration.negatives == 40
    assert found["attacks"]["none"]["payload_verified"]["rate"] == 0
    assert set(found["sizes"]) == {"64x64", "40x72"}


def test_an_autoencoder_is_its_own_teacher(measured):
    found, _, own = measured
    assert found["autoencoder"]["latent_correlation"] == 1
    assert found["autoencoder"]["round_trip_psnr"] == found["autoencoder"]["teachers_round_trip_psnr"]
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    torch.manual_seed(1)
    other = type(own)(**{k: v for k, v in own.config.items() if not k.startswith("_")}).eval()
    assert compare(other, own, [noise])["latent_correlation"] < 0.99


def test_published_it_loads_with_its_autoencoder_and_card(measured, tmp_path):
    found, codec, own = measured
    codec.config = replace(codec.config, family="vista")  # whose autoencoder it is
    publish_family(codec, own, tmp_path / "sd", found)
    detector = Detector.from_pretrained(tmp_path / "sd")
    assert next(detector.vae.parameters()).dtype == torch.float32
    card = (tmp_path / "sd" / "README.md").read_text()
    assert f"| none | {found['attacks']['none']['bit_accuracy']:.4f} |" in card
    assert "distilled autoencoders" in card
    stronger, _ = load_half(tmp_path / "sd", tmp_path / "sd" / "vae", deviation=0.4)
    secret = np.zeros((1, 64), np.uint8)
    torch.testing.assert_close(stronger.delta(secret), 2 * detector.codec.delta(secret))
