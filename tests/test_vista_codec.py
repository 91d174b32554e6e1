"""The codec that ships: it reads what it wrote, and its card and result say the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from diffmark import watermark
from diffmark.detection.latent import Detector
from diffmark.latent import vae
from diffmark.latent.codec import Codec
from diffmark.latent.files import find_codec
from diffmark.latent.injection import Injection
from diffmark.provenance import weights_digest
from diffmark.secret import random_secrets
from diffmark.vista import load_autoencoder, load_pipeline
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene

RESULT = Path(__file__).parents[1] / "results" / "vista_final.json"


@torch.no_grad()
def test_the_shipped_codec_reads_what_it_wrote():
    codec, autoencoder = Codec.from_pretrained("vista-final"), load_autoencoder()
    assert codec.injection.mode == "final"
    scene = np.asarray(paint(random_scene(HELD_OUT + 90_000), 256))
    pixels = torch.from_numpy(scene.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    z = vae.encode(autoencoder, pixels)
    secret = random_secrets()[0]
    images = [vae.decode(autoencoder, latents) for latents in (z + codec.delta(secret), z)]
    files = [((image[0].clamp(-1, 1) + 1) / 2) for image in images]
    detector = Detector(codec, autoencoder, fpr=1e-6)
    marked, unmarked = detector.detect(files[0], secret), detector.detect(files[1], secret)
    assert marked.marked
    assert marked.matches >= 60
    assert not unmarked.marked


def rows_of(text):
    """The cells of the Markdown table in a text, without its head."""
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_card_shows_the_results():
    found = json.loads(RESULT.read_text())["results"]
    card = (find_codec("vista-final") / "README.md").read_text()
    assert f"{found['psnr']['mean']:.1f} dB (min {found['psnr']['min']:.1f})" in card
    own, others = card.split("## Other injection modes")
    for row, figures in zip(rows_of(own), found["attacks"].values(), strict=True):
        assert float(row[1]) == pytest.approx(figures["bit_accuracy"], abs=5e-5)
        assert float(row[2]) == pytest.approx(figures["worst_image"], abs=5e-4)
        assert float(row[3]) == pytest.approx(figures["tpr_at_0.001"]["rate"], abs=5e-4)
        assert float(row[4]) == pytest.approx(figures["tpr_at_1e-06"]["rate"], abs=5e-4)
    for row, mode in zip(rows_of(others), ("late", "persistent"), strict=True):
        there = json.loads(RESULT.with_name(f"vista_{mode}.json").read_text())["results"]
        assert row[0].startswith(f"{mode}, dose {there['injection']['dose']:g}")
        assert row[1].startswith(f"{there['psnr']['mean']:.1f} dB")
        attacks = there["attacks"]
        for cell, name in zip(row[2:5], ("none", "jpeg_50", "rotation_5"), strict=True):
            assert float(cell) == pytest.approx(attacks[name]["bit_accuracy"], abs=5e-4)
        assert float(row[5]) == attacks["none"]["tpr_at_1e-06"]["rate"]
    folder = RESULT.parent / "evaluation"
    clean, keys = (json.loads((folder / f"{n}.json").read_text())["rows"] for n in ("clean", "keys"))
    assert f"{clean[0]['bit_accuracy']:.4f} of the bits" in card
    assert f"at {clean[0]['psnr']:.1f} dB (min {clean[0]['psnr_min']:.1f})" in card
    assert f"{clean[0]['tpr_1e-06_exact']['value']:.3f} at 1e-6" in card
    assert f"{keys[0]['bit_accuracy']:.4f} of the bits" in card
    document = json.loads((find_codec("vista-final") / "config.json").read_text())
    assert document["provenance"]["measured"]["psnr"] == found["psnr"]


SURVIVAL = RESULT.parent / "survival"


def test_the_noise_codec_is_what_was_measured():
    """The shipped weights are those that were measured; a test of published figures holds card and docs to them."""
    codec = Codec.from_pretrained("vista")
    for file in ("survival/vista", "noise_codec"):
        config = json.loads((RESULT.parent / f"{file}.json").read_text())["config"]
        assert config["weights"] == weights_digest(codec, half=True)
    config = json.loads((SURVIVAL / "vista.json").read_text())["config"]
    assert codec.injection == Injection(**config["injection"])


def test_the_persistent_codec_is_what_was_measured():
    codec = Codec.from_pretrained("vista-persistent")
    config = json.loads((SURVIVAL / "vista_persistent.json").read_text())["config"]
    assert config["weights"] == weights_digest(codec, half=True)
    assert codec.injection == Injection(**config["injection"])
    assert codec.injection.mode == "persistent"


def test_the_persistent_codec_marks_what_a_pipeline_makes():
    codec, pipe = Codec.from_pretrained("vista-persistent"), load_pipeline("vista")
    pipe.set_progress_bar_config(disable=True)
    secret = np.random.default_rng(0).integers(0, 2, 64, dtype=np.uint8)
    with watermark(pipe, codec, secret, pixel=False):
        image = pipe(
            "a lake below mountains",
            num_inference_steps=20,
            guidance_scale=4.0,
            generator=torch.Generator().manual_seed(1),
        ).images[0]
    assert Detector(codec, pipe.vae, fpr=1e-3).detect(image, secret).marked


def test_the_noise_codec_marks_what_a_pipeline_makes():
    codec, pipe = Codec.from_pretrained("vista"), load_pipeline("vista")
    pipe.set_progress_bar_config(disable=True)
    secret = np.random.default_rng(0).integers(0, 2, 64, dtype=np.uint8)
    detector = Detector(codec, pipe.vae, fpr=1e-3)
    images = []
    for strength in (1.0, 0.0):
        with watermark(pipe, codec, secret, strength):
            images += pipe(
                "a lake below mountains",
                num_inference_steps=10,
                guidance_scale=4.0,
                generator=torch.Generator().manual_seed(1),
            ).images
    marked, unmarked = (detector.detect(image, secret) for image in images)
    assert marked.marked
    assert not unmarked.marked
