"""The attacks of the security benchmarks do what they say, and rates and strengths are taken as they should be."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_codec, tiny_noise_codec
from PIL import Image

from diffmark.latent.injection import Injection
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.keys import OperatorKey

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FIRST, SECOND = PixelCodec(OperatorKey(bytes(range(32)))), PixelCodec(OperatorKey(bytes(range(1, 33))))
SECRET = np.random.default_rng(4).integers(2, size=64, dtype=np.uint8)


@pytest.fixture(scope="module")
def load():
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield lambda name: importlib.import_module(f"security.{name}")
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if BENCHMARKS in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


@pytest.fixture(scope="module")
def cover():
    rng = np.random.default_rng(3)
    coarse = Image.fromarray(rng.integers(40, 216, (24, 24, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((512, 512), Image.Resampling.BICUBIC), float)
    return Image.fromarray((pixels + rng.normal(0, 8, (512, 512, 3))).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def marked(cover):
    return FIRST.embed(cover, SECRET).image


def agreeing(image):
    return int(np.sum((FIRST.read(image, search=False).margins > 0) == SECRET))


def test_a_gradient_takes_a_mark_with_its_own_key_alone(load, marked):
    with_key = load("with_key")
    assert agreeing(marked) == 64
    assert agreeing(with_key.descended(marked, FIRST, 4.0)) < 40
    assert agreeing(with_key.descended(marked, SECOND, 4.0)) == 64


def test_a_copied_mark_is_read_from_another_picture(load, marked, cover):
    spectra = load("spectra")
    other = cover.transpose(Image.Transpose.ROTATE_90)
    assert agreeing(other) < 50
    assert agreeing(spectra.shifted(other, spectra.features(marked), 5.0)) >= 50


def test_directions_of_a_mark_are_found_among_noise(load):
    spectra = load("spectra")
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(2000, 4)))[0].T
    secrets = rng.integers(2, size=(200, 4), dtype=np.uint8)
    rows = (rng.normal(size=(200, 2000)) + 12 * (2.0 * secrets - 1) @ patterns).astype(np.float32)
    found = spectra.principal(rows, 4)
    assert np.linalg.norm(found @ patterns.T, axis=0).min() > 0.8  # their span holds each pattern
    assert (spectra.fitted(rows, secrets) * patterns).sum(axis=1).min() > 0.8


def test_tones_are_located_and_notched(load):
    tones = load("tones")
    truth = FIRST.layout.tones
    rng = np.random.default_rng(1)
    images = []
    for _ in range(12):
        luma = 128 + rng.normal(0, 12, (512, 512)) + truth.waves(np.full(len(truth.phases), 1.0))
        images.append(Image.fromarray(luma.clip(0, 255).astype(np.uint8)).convert("RGB"))
    found = tones.located(np.mean([tones.spectrum(image) for image in images], axis=0))
    near = [min(np.hypot(*(f - t)) for f in found for t in (one, -one)) for one in truth.frequencies]
    assert np.mean(np.array(near) <= 1) > 0.9
    before, after = (
        np.abs(truth.responses(load("spectra").frame_of(image)[0]))
        for image in (images[0], tones.notched(images[0], truth.frequencies))
    )
    assert after.mean() < 0.5 * before.mean()


def test_peaks_are_levelled_and_the_rest_is_left(load):
    tones = load("tones")
    truth = FIRST.layout.tones
    rng = np.random.default_rng(1)
    luma = 128 + rng.normal(0, 12, (512, 512)) + truth.waves(np.full(len(truth.phases), 1.0))
    image = Image.fromarray(luma.clip(0, 255).astype(np.uint8)).convert("RGB")
    after = tones.levelled(image, 4.0)
    response = [np.abs(truth.responses(load("spectra").frame_of(one)[0])).mean() for one in (image, after)]
    assert response[1] < 0.7 * response[0]
    assert np.abs(np.asarray(after, float) - np.asarray(image)).mean() < 3


def test_a_bend_moves_places_as_far_as_it_says(load):
    tones = load("tones")
    y, x = np.indices((256, 320))
    ramp = np.stack([x / 2, y / 2, x / 2], axis=2).astype(np.uint8)
    moved = np.asarray(tones.bent(Image.fromarray(ramp), 6.0), float) - ramp
    assert np.sqrt(np.mean((2 * moved[..., :2]) ** 2, axis=(0, 1)).sum()) == pytest.approx(6, rel=0.1)


def test_an_oracle_ends_where_the_detector_passes(load, cover):
    oracle = load("oracle")
    start = np.asarray(cover, float)
    asked = []

    def is_marked(image):
        asked.append(image)
        return float(np.abs(np.asarray(image) - start).mean()) < 3

    states = list(oracle.through(cover, oracle.destroyers(cover), is_marked, 60, np.random.default_rng(0)))
    assert len(asked) == 60
    assert [count for count, _ in states] == sorted(count for count, _ in states)
    assert not any(is_marked(image) for _, image in states)
    damage = [float(np.abs(np.asarray(image) - start).mean()) for _, image in states]
    assert damage[-1] < damage[0]


def test_strengths_are_chosen_as_said(load):
    measuring = load("measuring")
    found = {1.0: (1.0, 90.0), 2.0: (0.1, 80.0), 3.0: (0.0, 70.0), 4.0: (0.0, 10.0)}
    assert measuring.least_removing(tuple(found), found.__getitem__) == 2.0
    kept = {1.0: (1.0, 90.0), 2.0: (0.5, 70.0), 3.0: (0.0, 20.0)}
    assert measuring.least_removing(tuple(kept), kept.__getitem__) == 2.0
    assert measuring.least_removing(tuple(kept), kept.__getitem__, least=10) == 3.0
    forged = {1.0: (0.2, 90.0), 2.0: (0.9, 61.0), 3.0: (1.0, 20.0)}
    assert measuring.most_found(tuple(forged), forged.__getitem__) == 2.0


def test_rates_have_exact_intervals_and_names_need_more_than_a_find(load):
    measuring = load("measuring")
    assert measuring.share([True] * 3 + [False]) == {"rate": 0.75, "interval_95": [0.1941, 0.9937]}
    rng = np.random.default_rng(5)
    clear, weak = (size * (2.0 * SECRET - 1) + rng.normal(size=64) for size in (6, 0.6))
    assert measuring.named(clear, SECRET)
    assert not measuring.named(weak, SECRET)
    assert measuring.p_of(weak, SECRET[None]) < 1e-3
    assert measuring.p_of(weak, SECRET[None], 16) > measuring.p_of(weak, SECRET[None])


@pytest.fixture
def testbed(load, model_folder, tmp_path, monkeypatch):
    """Makes the testbed of a tiny codec, with few strengths and steps."""
    modules = {
        name: load(name)
        for name in ("generation_testbed", "latents", "noise", "generation", "collusion", "oracle")
    }
    for name, settings in {
        "generation_testbed": {"STEPS_PGD": 2, "UNMARKED": 3},
        "latents": {"STRENGTHS": (1.5, 3.0), "OF_ONE": (1, 3), "OF_FRESH": (2, 3)},
        "noise": {
            "COLLUDERS": (2,),
            "SURROGATE": {"widths": (8, 8, 8), "steps": 2, "batch": 2, "rate": 1e-3},
        },
        "generation": {"COLLUDERS": (2,), "OVERDONE": (0.5, 1.0), "EPSILONS": (2.0, 4.0)},
        "collusion": {"INNOCENT": 10},
        "oracle": {"QUESTIONS": (20, 30), "ASKED_ABOUT": 1},
    }.items():
        for setting, value in settings.items():
            monkeypatch.setattr(modules[name], setting, value)
    for name in ("measuring", "generation_testbed"):
        monkeypatch.setattr(load(name), "ssimulacra2", lambda *pair: 80.0)  # 64 pixels are too few for it

    def make(codec):
        codec.save_pretrained(tmp_path / "codec")
        return modules["generation_testbed"].GenerationTestbed(
            tmp_path, str(tmp_path / "codec"), str(model_folder), 1, 3, 2, 3
        )

    return make


def check_rows(rows):
    assert {f"mean latents of {count}, one secret" for count in (1, 3)} <= rows.keys()
    assert {"none", "collusion of 2, fresh secrets", "reader fitted to 3, fresh secrets"} <= rows.keys()
    for name, row in rows.items():
        if "found" in row and "questions" not in row:
            assert row["images"] == 3, name
            assert 0 <= row["found"]["rate"] <= 1


def test_every_row_of_a_learned_delta_can_be_made(load, testbed, tmp_path):
    made = testbed(tiny_codec(injection=Injection("late", start=0.8, end=0.3)))
    rows = {name: make() for name, make in load("generation").tasks(made)}
    check_rows(rows)
    assert "gradient on the margins with the codec" in rows
    word = rows["privacy: the word, without the operator's key"]
    assert word["bits_read_right_without_a_key"]["rate"] < 0.75
    assert "seen_to_be_marked_at_all" not in word  # this codec has no calibration
    painted = len(list((tmp_path / "made").glob("test-*")))
    assert painted == 3 * 3 + 2 * (
        3 + 2
    )  # unmarked, both kinds; copies of two accounts, the first are the same


def test_every_row_of_a_mark_in_the_noise_can_be_made(load, testbed, monkeypatch):
    made = testbed(tiny_noise_codec())
    noise = load("noise")
    detect = made.detector.detect
    asked = []

    def marked_at_first(
        image, secret=None
    ):  # an untrained reader finds nothing, and there is nothing to ask for
        asked.append(image)
        return replace(detect(image, secret), verdict="marked" if len(asked) == 1 else "not marked")

    monkeypatch.setattr(made.detector, "detect", marked_at_first)
    rows = {name: make() for name, make in dict(noise.tasks(made)).items()}
    check_rows(rows)
    for name in (
        "gradient on the margins, operator's key",
        "gradient on a surrogate reader, without the network",
    ):
        assert f"{name}, 8 levels" in rows
    assert rows["oracle of 30 questions"]["images"] == 1
    key = rows["forgery: patterns fitted to 3, fresh secrets"]
    assert 0 <= key["places_of_bits_found"] <= 1
    assert "ssimulacra2" not in rows["forgery: new picture from the noise of one picture, by inversion"]


def test_a_gradient_through_the_network_changes_what_is_read(load, testbed, monkeypatch):
    """Away from the noise that a picture was read as, towards that of another, and no further than it may."""
    monkeypatch.setattr(load("generation_testbed"), "STEPS_PGD", 30)
    made = testbed(tiny_noise_codec(seed=3))
    attacker = load("noise").Attacker(made)
    image, other = made.made("test", "no mark")[:2]

    def likeness(picture, wanted):
        return float(torch.cosine_similarity(attacker.noise_of(picture).flatten(), wanted.flatten(), dim=0))

    own, wanted = attacker.noise_of(image), attacker.noise_of(other)
    away = attacker.complemented(image, 8.0)
    forged = attacker.towards(image, wanted, 8.0, attacker.network)
    assert likeness(away, own) < likeness(image, own) - 0.01
    assert likeness(forged, wanted) > likeness(image, wanted)
    assert np.abs(np.asarray(away, int) - np.asarray(image)).max() <= 8


def test_the_pages_say_what_the_results_say(load, tmp_path):
    tables = importlib.import_module("security_tables")
    for page in tables.PAGES:
        copy = tmp_path / page.name
        copy.write_text(page.read_text())
        tables.fill_pages([copy])
        assert copy.read_text() == page.read_text(), f"{page.name}: run python benchmarks/security_tables.py"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_mixture_names_nobody_who_did_not_take_part(load, fresh):
    collusion = load("collusion")
    rng = np.random.default_rng(6)
    held, copies = [], []
    for _ in range(2):
        secrets = rng.integers(2, size=(6, 64), dtype=np.uint8)
        secrets = secrets if fresh else np.repeat(secrets[:1], 6, axis=0)
        held.append(secrets)
        shades = [np.repeat(60 + 120 * secret[:, None], 3, axis=1).reshape(8, 8, 3) for secret in secrets]
        copies.append([Image.fromarray(shade.astype(np.uint8)) for shade in shades])
    noise = iter(rng.normal(0, 4, (6, 64)))
    row = collusion.mixture(
        [collusion.averaged(some) for some in zip(*copies, strict=True)],
        held,
        lambda image: np.asarray(image, float)[..., 0].ravel() - 120 + next(noise),
        fresh,
    )
    assert row["innocent_named"]["rate"] == 0
    assert row["someone_found"]["rate"] > 0.5
    assert row["someone_named_by_3"]["rate"] >= row["someone_named"]["rate"]
