"""Measuring and publishing a family's codec, end to end with small real networks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from diffmark.cli.train import app
from diffmark.codec import Codec, CodecConfig
from diffmark.codec_files import PIXEL_FILE
from diffmark.detection import Detector
from diffmark.evaluation.memory import Memory
from diffmark.fast import PixelDecoder, load_pixel_decoder, save_pixel_decoder
from diffmark.injection import Injection
from diffmark.provenance import weights_digest
from diffmark.training import family_measurement, family_negatives, family_pictures
from diffmark.training.family_card import card as write_card
from diffmark.training.family_measurement import compare, measure_family, suggested_strength
from diffmark.training.family_negatives import Unmarked, describe_blind, describe_unmarked
from diffmark.training.family_pictures import Accounts
from diffmark.training.family_publication import load_half, publish_family, training_of
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
def measured(paths, tmp_path_factory):
    torch.manual_seed(0)
    patch = pytest.MonkeyPatch()
    patch.setattr(family_negatives, "ENLARGED", 96)
    patch.setattr(family_measurement, "SIZES", ((64, 64), (40, 72)))
    patch.setattr(family_measurement, "GENERATED_SIZES", ((64, 64), (96, 64)))
    own = load_autoencoder()
    codec, memory = Codec(CONFIG), Memory(tmp_path_factory.mktemp("kept"))
    pixel = PixelDecoder(codec)

    def measure(marked):
        return measure_family(codec, own, own, paths, marked, 2, 40, memory, pixel_decoder=pixel)

    found, codec = measure(2)
    patch.setattr(family_pictures, "embed", refuse)
    patch.setattr(family_pictures, "delta_at_z0", refuse)
    assert measure(2)[0] == found  # from what was kept
    with pytest.raises(AssertionError, match="marked again"):
        measure(3)
    marking = family_pictures.MARKING
    patch.setattr(family_pictures, "MARKING", ("codec", "embedding"))
    with pytest.raises(AssertionError, match="marked again"):
        measure(2)  # other code made what was kept
    patch.setattr(family_pictures, "MARKING", marking)
    patch.setattr(family_pictures, "READING", ("codec",))
    patch.setattr(Detector, "logits", refuse)
    with pytest.raises(AssertionError, match="or read"):
        measure(2)
    patch.undo()
    return found, codec, own


def refuse(*arguments):
    raise AssertionError("a picture was marked again, or read")


def test_strength_costs_psnr(measured):
    found, _, _ = measured
    for curve in (found["embedded_curve"], found["same_seed_curve"]):
        ratios = [row["psnr"] for row in curve]
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] - ratios[-1] > 6  # nearly three times the strength, or more


def test_the_least_strength_that_reads_enough_is_suggested(measured):
    found, codec, _ = measured
    assert found["strength"] == codec.config.embed_strength == 2.83  # nothing is read at any

    def suggested(*figures, psnr=36.0):
        rows = zip((0.5, 1.0, 1.41, 2.0), figures, strict=True)
        return suggested_strength(
            [
                {"strength": s, "psnr": psnr - 6 * s, "bit_accuracy": a, "payload_verified": {"rate": p}}
                for s, (a, p) in rows
            ]
        )

    assert suggested((0.9, 1), (0.97, 1), (0.985, 1), (0.99, 1)) == 1.41
    assert suggested((0.99, 1), (0.99, 1), (0.99, 1), (0.99, 1)) == 1.0  # attacks need a reserve
    assert suggested((0.99, 1), (0.99, 0.9), (0.99, 0.94), (0.99, 0.95)) == 2.0
    assert suggested((0.99, 1), (0.99, 1), (0.99, 1), (0.99, 1), psnr=49.0) == 1.41  # 40.5 dB: it is not seen


def test_a_payload_of_another_account_is_not_verified():
    accounts = Accounts(2, 64, np.random.default_rng(0))
    margins = 2.0 * accounts.secrets - 1
    assert accounts.verified(margins) == 2
    assert accounts.verified(margins[:1]) == 1
    assert accounts.verified(margins[[0, 0]]) == 1
    assert accounts.verified(-margins) == 0


def test_an_untrained_codec_reads_by_chance(measured):
    found, codec, _ = measured
    assert found["negatives"]["crops"] == codec.calibration.negatives == 40
    assert found["attacks"]["none"]["payload_verified"]["rate"] == 0
    assert set(found["sizes"]) == {"64x64", "40x72"}


def test_bits_that_unmarked_pictures_lean_to_are_seen():
    """A secret that happens to be near them is then found in every picture, others in none."""
    leaning = np.tile(np.random.default_rng(3).normal(size=64), (50, 1))
    fair = np.random.default_rng(4).normal(size=(5_000, 64))
    rows = [describe_unmarked(margins, 0)["false_positives_at_0.01"] for margins in (leaning, fair)]
    assert rows[0]["of_the_worst_secret"]["rate"] == 1
    assert 0 < rows[1]["rate"] <= 0.01
    assert rows[1]["of_the_worst_secret"]["rate"] < 0.02


def test_blind_tests_are_measured_on_other_photographs():
    rng = np.random.default_rng(0)
    margins = rng.normal(size=(4_000, 64))
    photographs = np.arange(4_000) // 400
    same = describe_blind(Unmarked(margins, photographs, photographs < 0), "margin")
    assert same["of"] == 2_000
    assert same["rate"] < 0.005
    margins[photographs % 2 == 1] *= 3  # louder than any that was calibrated on
    assert describe_blind(Unmarked(margins, photographs, photographs < 0), "margin")["rate"] == 1


def test_sharp_pictures_are_among_the_negatives(measured):
    found, codec, own = measured
    sharp = found["negatives"]["sharp"]
    assert sharp["crops"] == 4
    assert found["negatives"]["blind_at_1e-3"] is None  # forty cannot tell one in a thousand
    assert found["negatives"]["payload_verified"]["rate"] == 0
    assert codec.calibration.vaes == (weights_digest(own, half=True),)


def test_generated_images_are_attacked_and_of_other_sizes(measured):
    found, _, _ = measured
    native, attacks = found["same_seed"], found["same_seed"]["attacks"]
    assert set(attacks) == {"jpeg_50", "resize_0.5", "resize_2"}
    assert set(found["generated_sizes"]) == {"64x64", "96x64"}
    for rows, count in ((attacks, 2), (found["generated_sizes"], 1)):
        for row in rows.values():
            assert row["read_by_own"] == row["read_by_teacher"]  # which is the same autoencoder here
            assert row["read_by_own"]["payload_verified"]["of"] == count
    assert found["generated_sizes"]["64x64"]["psnr"] == pytest.approx(native["psnr"], abs=2)


def test_more_pictures_than_there_are_are_refused(measured, paths, tmp_path):
    _, codec, own = measured
    for counts, says in (
        ({"marked": 2, "same_seed": 3}, "3 pictures through the teacher are more than the 2"),
        ({"marked": 9, "same_seed": 4}, "4 pictures through the teacher are more than the 3"),
        ({"marked": 2, "same_seed": 1, "generated": 2}, "2 generated pictures are more than the 1"),
    ):
        with pytest.raises(ValueError, match=says):
            measure_family(codec, own, own, paths, negatives=40, memory=Memory(tmp_path), **counts)


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
    record = {"config": {"loop": {"steps": 1600}}, "seconds": 840.2, "threads": 1}
    publish_family(codec, own, tmp_path / "sd", {**found, "trained_on": 12, "distillation": record})
    assert training_of(tmp_path / "sd" / "vae") == {"distillation": record}
    detector = Detector.from_pretrained(tmp_path / "sd")
    assert next(detector.vae.parameters()).dtype == torch.float32
    assert detector.vae.config.family == "vista"
    assert detector.codec.calibration.vaes == (weights_digest(detector.vae, half=True),)
    card = (tmp_path / "sd" / "README.md").read_text()
    assert f"| none | {found['attacks']['none']['bit_accuracy']:.4f} |" in card
    assert "distilled autoencoders" in card
    assert "12 were trained on" in card
    assert "It took 1,600 steps, 14 minutes of one core" in " ".join(card.split())
    assert "| jpeg 50 | 0." in card
    assert "| 96x64 (" in card
    assert "of the 4 among them" in " ".join(card.split())
    stronger, _ = load_half(tmp_path / "sd", tmp_path / "sd" / "vae", deviation=0.4)
    secret = np.zeros((1, 64), np.uint8)
    torch.testing.assert_close(stronger.delta(secret), 2 * detector.codec.delta(secret))


def test_the_command_measures_and_publishes(paths, tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    for number in range(10):
        shutil.copy(paths[number % len(paths)], tmp_path / "pictures" / f"{number}.png")
    (tmp_path / "run.toml").write_text('[codec]\ninjection = { mode = "final" }\n')
    load_autoencoder().save_pretrained(tmp_path / "own")
    Codec(replace(CONFIG, family="vista")).save_pretrained(tmp_path / "codec")
    monkeypatch.setattr(family_negatives, "ENLARGED", 96)
    for name, value in (
        ("SIZES", ()),
        ("GENERATED_SIZES", ((64, 64),)),
        ("STRENGTHS", (1.0,)),
        ("SAME_SEED_STRENGTHS", (1.0,)),
    ):
        monkeypatch.setattr(family_measurement, name, value)
    places = ["--config", "run.toml", "--pictures", "pictures", "--own", "own", "--out", "out.json"]
    arguments = [*places, "--vae", "own", "--marked", "2", "--same-seed", "2", "--negatives", "40"]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, ["measure-family", "codec", *arguments, "--publish", "shipped"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out.json").read_text())["results"]
    assert (found["held_out"], found["trained_on"]) == (2, 8)
    assert "8 were trained on" in (tmp_path / "shipped" / "README.md").read_text()


def test_publishing_leaves_no_pixel_decoder_of_another_codec(measured, tmp_path):
    found, codec, own = measured
    assert set(found["fast"]) == set(family_measurement.FAST_ATTACKS)
    assert found["fast"]["none"] != found["attacks"]["none"]
    assert "read with the pixel decoder" in write_card(codec.config, found, {})
    publish_family(codec, own, tmp_path / "new", found, PixelDecoder(codec))
    assert load_pixel_decoder(tmp_path / "new").image_size == (32, 32)
    for decoder, stays in ((codec, True), (Codec(CONFIG), False)):
        save_pixel_decoder(PixelDecoder(decoder), tmp_path)
        publish_family(codec, own, tmp_path, found)
        assert (tmp_path / PIXEL_FILE).is_file() == stays


@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux"])
def test_cards_are_made_of_the_committed_figures(name):
    results = Path(__file__).parents[1] / "results" / f"family_{name}.json"
    codec = Codec.from_pretrained(name)
    text = write_card(codec.config, json.loads(results.read_text())["results"], codec.provenance)
    assert f"# Codec `{name}`" in text
    assert "None" not in text
