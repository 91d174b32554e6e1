"""StegaStamp, Stable Signature and AquaLoRA: the methods, with tiny networks and with the committed weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import _unet
from PIL import Image
from torch import nn

from diffmark.baselines.aqualora import (
    AquaLora,
    Inner,
    LatentWatermark,
    MessageLora,
    place_waves,
    save_adapter,
)
from diffmark.baselines.base import Method
from diffmark.baselines.stable_signature import Extractor, SignedDecoder, StableSignature, mean_cell
from diffmark.baselines.stegastamp import StegaStamp, StegaStampNetwork
from diffmark.baselines.weights import baseline_folder, signs
from diffmark.evaluation.baselines import measure_baseline
from diffmark.evaluation.experiments.keys import keys
from diffmark.evaluation.experiments.latency import stages
from diffmark.evaluation.harness import Extent, Harness
from diffmark.evaluation.image_model import ImageModel
from diffmark.latent.pictures import to_images, to_pixels
from diffmark.mark.generation import ImageSpec, Sampling
from diffmark.mark.loading import load_pipeline
from diffmark.metrics import psnr
from diffmark.statistics import match_threshold
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene

RNG = np.random.default_rng(3)


def bits(*shape):
    return RNG.integers(0, 2, shape).astype(np.uint8)


@pytest.fixture(scope="module")
def scenes():
    return [Image.fromarray(np.asarray(paint(random_scene(HELD_OUT + index)))) for index in range(2)]


@pytest.fixture(scope="module")
def pipe(model_folder):
    pipe = load_pipeline(str(model_folder))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_weights_that_are_missing_are_asked_for(monkeypatch, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"diffmark baselines train nothing configs/baselines/nothing\.toml"
    ):
        baseline_folder("nothing")
    mine = tmp_path / "baselines" / "stegastamp"
    mine.mkdir(parents=True)
    (mine / "config.json").write_text("{}")
    monkeypatch.setenv("DIFFMARK_WEIGHTS", str(tmp_path))
    assert baseline_folder("stegastamp") == mine


def test_pixels_and_back(scenes):
    pixels = to_pixels(scenes)
    assert pixels.shape == (2, 3, 256, 256)
    assert np.array_equal(np.asarray(to_images(pixels[:1])[0]), np.asarray(scenes[0]))


# --- StegaStamp ------------------------------------------------------------------------------------------------


def test_stegastamp_reads_what_it_wrote(scenes):
    """The committed weights, at the quality that they were trained for."""
    method = StegaStamp()
    assert (method.name, method.bits, method.generates) == ("stegastamp", 100, False)
    secrets = bits(2, 100)
    marked = [method.embed(image, secret) for image, secret in zip(scenes, secrets, strict=True)]
    assert method.score(marked, secrets).min() >= 95
    assert method.score(scenes, secrets).max() < match_threshold(100, 1e-3)
    assert 29 < psnr(scenes[0], marked[0]) < 32
    wide = marked[0].resize((400, 300))
    assert method.score([wide], secrets[:1])[0] >= 90
    with pytest.raises(ValueError, match="writes 100 bits, got 64"):
        method.embed(scenes[0], bits(64))


def test_stegastamp_embeds_at_any_size(tmp_path, scenes):
    StegaStampNetwork(bits=8, width=16, rms=0.1).save_pretrained(tmp_path)
    method = StegaStamp(tmp_path)
    image = scenes[0].resize((200, 120))
    assert method.embed(image, bits(8)).size == (200, 120)
    assert method.decode([image, scenes[1]]).shape == (2, 8)


def test_the_residual_has_the_size_that_was_asked_for():
    network = StegaStampNetwork(bits=8, width=16, rms=0.1)
    images = torch.rand(3, 3, 128, 128) * 2 - 1
    for rms, wanted in ((None, 0.1), (0.3, 0.3)):
        residual = network.residual(images, signs(bits(3, 8)), rms)
        torch.testing.assert_close(residual.square().mean((1, 2, 3)).sqrt(), torch.full((3,), wanted))


# --- Stable Signature ------------------------------------------------------------------------------------------


def test_whitening_makes_bits_of_unmarked_images_independent():
    torch.manual_seed(0)
    extractor = Extractor(bits=6, width=16)
    logits = torch.randn(500, 6) @ torch.randn(6, 6) + 2
    extractor.whiten(logits)
    white = (logits - extractor.mean) @ extractor.whitening
    covariance = torch.cov(white.T)
    assert white.mean(0).abs().max() < 1e-4
    assert (covariance - torch.diag(covariance.diagonal())).abs().max() < 0.02 * covariance.diagonal().mean()


def test_the_mean_cell_leaves_colour_out():
    flat = torch.full((1, 3, 32, 32), 0.7)
    assert mean_cell(flat).abs().max() < 1e-6
    texture = torch.randn(1, 3, 8, 8).repeat(1, 1, 4, 4)
    torch.testing.assert_close(mean_cell(texture + 0.5), mean_cell(texture), atol=1e-5, rtol=0)


def test_stable_signature_has_one_key(tmp_path, pipe):
    key = tuple(int(bit) for bit in bits(8))
    network = SignedDecoder(key, width=16, block_out_channels=(4, 4, 8, 16), layers_per_block=1)
    network.save_pretrained(tmp_path)
    method = StableSignature(pipe, Sampling(steps=2, guidance=1.0), tmp_path)
    assert (method.bits, method.generates, method.finishes) == (8, True, True)
    assert np.array_equal(method.carried(bits(8)), key)
    spec = ImageSpec("a hill", bits(8), 4)
    image = method.generate(spec)
    assert image.size == (64, 64)
    latents = pipe(spec.prompt, num_inference_steps=2, guidance_scale=1.0, output_type="latent",
                   generator=torch.Generator().manual_seed(4)).images  # fmt: skip
    assert np.array_equal(np.asarray(method.finish(latents, bits(1, 8))[0]), np.asarray(image))
    assert method.decode([image, image]).shape == (2, 8)


# --- AquaLoRA --------------------------------------------------------------------------------------------------


def test_place_waves_tell_every_place_apart():
    waves = place_waves(8, 8, 8)
    gram = waves.T @ waves
    torch.testing.assert_close(gram, torch.diag(gram.diag()), atol=1e-4, rtol=0)  # a basis: any map of 8 x 8


def test_between_the_factors_tokens_and_pictures_are_the_same():
    inner, values, messages = Inner(bits=8, rank=4), torch.randn(2, 4, 6, 6), signs(bits(2, 8))
    tokens = inner(values.flatten(2).transpose(1, 2), messages)
    torch.testing.assert_close(inner(values, messages).flatten(2).transpose(1, 2), tokens)
    scales = inner.scale(messages)
    torch.testing.assert_close(
        inner(values, messages) - inner(0 * values, messages), values * scales[:, :, None, None]
    )


@pytest.fixture
def adapter(tmp_path, pipe):
    """An adapter with random factors, as if it had been trained."""
    torch.manual_seed(0)
    lora = MessageLora(copy.deepcopy(pipe.unet), bits=8, rank=4)
    for name, weight in lora.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    watermark = LatentWatermark(bits=8, side=8, grid=8)
    save_adapter(tmp_path, watermark, lora, {"bits": 8, "rank": 4, "rms": 0.3, "model": "tiny"})
    return tmp_path


def test_another_message_is_another_picture(adapter, pipe):
    before = {name: value.clone() for name, value in pipe.unet.state_dict().items()}
    method = AquaLora(pipe, Sampling(steps=2, guidance=2.0), adapter)
    secret = bits(8)
    pictures = [np.asarray(method.generate(ImageSpec("a hill", s, 1))) for s in (secret, secret, 1 - secret)]
    assert np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[0], pictures[2])
    together = method.generate_all([ImageSpec("a hill", s, 1) for s in (secret, 1 - secret)])
    for picture, alone in zip(together, (pictures[0], pictures[2]), strict=True):
        assert np.abs(np.asarray(picture).astype(int) - alone).max() <= 1
    assert method.decode(to_images(torch.zeros(1, 3, 64, 64))).shape == (1, 8)
    assert method.fingerprint() != AquaLora(pipe, Sampling(steps=3), adapter).fingerprint()
    # The pipeline that it was given is as it was.
    assert all(torch.equal(value, before[name]) for name, value in pipe.unet.state_dict().items())
    with pytest.raises(ValueError, match="writes 8 bits, got 9"):
        method.generate(ImageSpec("a hill", bits(9), 1))


def test_an_adapter_belongs_to_its_unet(adapter, pipe):
    other = copy.copy(pipe)
    other.register_modules(unet=_unet(block_out_channels=(16, 16)))
    with pytest.raises(ValueError, match="trained on a UNet of another shape"):
        AquaLora(other, folder=adapter)


def test_messages_of_a_batch_are_its_samples_own(pipe):
    torch.manual_seed(1)
    lora = MessageLora(copy.deepcopy(pipe.unet), bits=8, rank=4).eval()
    z, text = torch.randn(3, 4, 8, 8), torch.randn(3, 7, 32)
    frozen = pipe.unet(z, 10, text).sample
    lora.set_message(signs(bits(3, 8)))
    torch.testing.assert_close(lora.unet(z, 10, text).sample, frozen)  # a LoRA starts as nothing
    for name, weight in lora.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.3)
    messages = signs(bits(3, 8))
    lora.set_message(messages)
    together = lora.unet(z, 10, text).sample
    assert (together - frozen).abs().mean() > 1e-3
    for i in range(3):
        lora.set_message(messages[i : i + 1])
        alone = lora.unet(z[i : i + 1], 10, text[i : i + 1]).sample
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=1e-3)


# --- in the evaluation -----------------------------------------------------------------------------------------


class Fixed(Method):
    """Has one key for good, and reads it from anything."""

    name, bits = "fixed", 4
    key = np.array([1, 0, 0, 1], np.uint8)

    def carried(self, secret):
        return self.key

    def embed(self, image, secret):
        assert np.array_equal(secret, self.key)
        return image

    def decode(self, images):
        return np.tile(2.0 * self.key - 1, (len(images), 1))


def test_a_method_with_one_key_is_scored_against_it_but_gives_no_other(pipe, tmp_path):
    model = ImageModel(tmp_path, pipe, "tiny", Sampling(steps=1, guidance=1.0))
    harness = Harness(model, [Fixed()], Extent(marked=6, timed=3))
    reading, _ = harness.reading(harness.methods[0], harness.specs(6))
    assert reading.scores.tolist() == [4] * 6
    fixed, random = keys(harness)
    assert fixed["bit_accuracy"] == 1
    assert random["bit_accuracy"] < 1


def test_stages_of_a_reading_sum_to_one(pipe, tmp_path, adapter):
    method = AquaLora(pipe, Sampling(steps=1, guidance=1.0), adapter)
    harness = Harness(ImageModel(tmp_path / "pictures", pipe, "tiny", Sampling(steps=1)), [method])
    shares = stages(harness, method, to_images(torch.zeros(1, 3, 64, 64)))
    assert set(shares) == {"vae encode", "decode", "rest"}
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())


def test_quick_figures_of_stegastamp():
    rows = measure_baseline("stegastamp", 1)
    assert [row["what"] for row in rows[:2]] == ["marked", "unmarked"]
    assert rows[0]["bit_accuracy"] > 0.95 > rows[1]["bit_accuracy"]
    with pytest.raises(ValueError, match="use diffmark evaluate clean --methods aqualora"):
        measure_baseline("aqualora", 1)
