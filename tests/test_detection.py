from __future__ import annotations

import copy
import io
import json

import numpy as np
import pytest
import torch
from conftest import _vae, tiny_codec
from PIL import Image
from rich.console import Console

import diffmark
from diffmark import statistics
from diffmark.detection.latent import Detection, Detector
from diffmark.images import ImageError
from diffmark.latent.calibration import Calibration
from diffmark.latent.vae import FamilyError, decode, encode, load_vae
from diffmark.payload.scheme import PayloadScheme
from diffmark.provenance import weights_digest
from diffmark.secret import random_secrets, to_hex


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    return _vae(scaling_factor=0.18215).eval()


@pytest.fixture
def detector(vae):
    return Detector(tiny_codec(), vae)


def logits_for(bits, errors=0, size=2.0):
    """Logits (L, 2) that say `bits`, the first `errors` of them wrong."""
    read = bits.copy()
    read[:errors] ^= 1
    margins = size * (2.0 * read - 1)
    return np.stack([-margins / 2, margins / 2], axis=-1)


def picture(seed=0, size=(64, 64)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3)).astype(np.uint8))


def test_the_verdict_on_a_given_secret_is_the_binomial_test(detector, secret):
    for errors, verdict in [(0, "marked"), (19, "marked"), (20, "not marked"), (32, "not marked")]:
        found = detector.decide(logits_for(secret, errors), secret[None])
        assert (found.verdict, found.test, found.matches, found.threshold) == (
            verdict,
            "secret",
            64 - errors,
            45,
        )
        assert found.p_value == statistics.match_tail(64 - errors, 64)
        assert found.matched_secret == to_hex(secret)
        assert found.marked == (verdict == "marked")


def test_many_candidates_raise_the_bar(detector):
    secrets = np.random.default_rng(1).integers(0, 2, (1000, 64)).astype(np.uint8)  # none else has 45 matches
    found = detector.decide(logits_for(secrets[7], 19), secrets)
    assert found.matched_secret == to_hex(secrets[7])
    assert found.verdict == "not marked"  # 45 matches are not enough among a thousand
    assert found.threshold == 51
    assert found.p_value == pytest.approx(statistics.family_wise(statistics.match_tail(45, 64), 1000))
    assert detector.decide(logits_for(secrets[7], 13), secrets).marked


def test_the_soft_p_value_counts_doubtful_bits_less(detector, secret):
    logits = logits_for(secret, 15)
    logits[:15] *= 0.05  # the wrong bits are the doubtful ones
    found = detector.decide(logits, secret[None])
    assert found.soft_p_value < found.p_value


def test_blind_verdicts_need_a_calibration(vae, secret):
    codec = tiny_codec()
    assert Detector(codec, vae).decide(logits_for(secret)).verdict == "undecided"
    codec.calibration = Calibration.measure(np.linspace(0, 1, 10_000))
    detector = Detector(codec, vae)
    sure, unsure = detector.decide(logits_for(secret)), detector.decide(logits_for(secret, size=0.4))
    assert (sure.verdict, sure.test) == ("marked", "blind")
    assert sure.p_value == pytest.approx(1e-4)
    assert (unsure.verdict, unsure.test) == ("not marked", "blind")


def test_a_calibration_that_cannot_state_the_rate_leaves_it_undecided(vae, secret):
    codec = tiny_codec()
    codec.calibration = Calibration.measure(np.linspace(0, 1, 500))
    found = Detector(codec, vae, fpr=1e-3).decide(logits_for(secret, size=1e4))
    assert (found.verdict, found.test) == ("undecided", "blind")
    assert "cannot state a rate of 0.001" in found.explanation
    assert Detector(codec, vae, fpr=0.01).decide(logits_for(secret, size=1e4)).marked


def test_a_calibration_of_another_autoencoder_decides_nothing(vae, secret, tmp_path):
    codec = tiny_codec()
    codec.calibration = Calibration.measure(np.linspace(0, 1, 10_000), vae=weights_digest(vae, half=True))
    copy.deepcopy(vae).half().save_pretrained(tmp_path / "half")
    for same in (vae, load_vae(tmp_path / "half"), load_vae(tmp_path / "half").half()):
        assert Detector(codec, same).decide(logits_for(secret)).marked
    torch.manual_seed(1)
    other = Detector(codec, _vae(scaling_factor=0.18215))
    found = other.decide(logits_for(secret), notes=("a note",))
    assert (found.verdict, found.test, found.p_value) == ("undecided", "none", None)
    assert found.notes[0] == "a note"
    assert "another autoencoder" in found.notes[1]
    assert other.decide(logits_for(secret), secret[None]).marked  # exact tests need no calibration


def test_numbers_that_are_not_finite_are_no_verdict(vae, secret):
    logits = logits_for(secret)
    logits[3, 0] = np.nan
    for detector in (
        Detector(tiny_codec(), vae),
        Detector(tiny_codec(), vae, payload=PayloadScheme(bytes(32))),
    ):
        for secrets in (None, secret[None]):
            found = detector.decide(logits, secrets)
            assert found.verdict == "undecided"
            assert "not finite" in found.notes[0]
            json.dumps(found.to_dict(), allow_nan=False)


def test_a_rate_that_so_many_candidates_rule_out_is_refused_at_the_start(vae):
    short = Detector(tiny_codec(length=16), vae)
    with pytest.raises(ValueError, match="cannot reach"):
        list(short.scan([picture()], random_secrets(200, 16)))


def test_payloads_verify(vae):
    scheme = PayloadScheme(bytes(32))
    detector = Detector(tiny_codec(), vae, payload=scheme)
    found = detector.decide(logits_for(scheme.encode(1234), 2))
    assert (found.verdict, found.test, found.payload.account, found.payload.errors) == (
        "marked",
        "payload",
        1234,
        2,
    )
    other = Detector(tiny_codec(), vae, payload=PayloadScheme(bytes([1]) * 32))
    assert other.decide(logits_for(scheme.encode(1234))).verdict == "not marked"
    with pytest.raises(ValueError, match="secrets of 48 bits, the codec's have 64"):
        Detector(tiny_codec(), vae, payload=PayloadScheme(bytes(32), 48, 20, 3, 12))


def test_logits_come_from_the_latents_of_the_image(detector, vae, secret):
    image = picture()
    with torch.no_grad():
        pixels = torch.from_numpy(np.asarray(image, np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
        expected = detector.codec.decode(encode(vae, pixels))[0].numpy()
    np.testing.assert_allclose(detector.detect(image).margins, expected[:, 1] - expected[:, 0], atol=1e-5)
    assert detector.detect(image).source == "image"


def test_a_stream_is_read_in_order_in_batches_whatever_their_size(vae):
    images = [picture(seed, (64 + 8 * seed, 64)) for seed in range(5)]
    one_by_one = [Detector(tiny_codec(), vae).detect(image) for image in images]
    batched = list(Detector(tiny_codec(), vae, batch_size=2).detect_many(iter(images)))
    for a, b in zip(one_by_one, batched, strict=True):
        np.testing.assert_allclose(a.logits, b.logits, atol=1e-5)


def test_memory_is_bounded(vae):
    """Images are taken from the stream only as results are taken out."""
    taken = []

    def stream():
        for seed in range(10):
            taken.append(seed)
            yield picture(seed)

    results = Detector(tiny_codec(), vae, batch_size=2).detect_many(stream())
    next(results)
    assert len(taken) == 2


def test_bad_files_are_reported_in_their_place(detector, tmp_path):
    (tmp_path / "a.png").write_bytes(b"nothing")
    picture().save(tmp_path / "b.png")
    first, second = detector.scan([tmp_path / "a.png", tmp_path / "b.png"])
    assert isinstance(first, ImageError)
    assert second.source.endswith("b.png")
    with pytest.raises(ImageError, match=r"a\.png"):
        list(detector.detect_many([tmp_path / "a.png"]))
    assert list(detector.scan([])) == []


def test_notes_travel_with_the_result(detector):
    buffer = io.BytesIO()
    picture().save(buffer, "GIF", save_all=True, append_images=[picture(1)])
    assert "first of 2 frames" in detector.detect(buffer.getvalue()).notes[0]


def test_to_dict_and_rendering(detector, vae, secret):
    scheme = PayloadScheme(bytes(32))
    reads = Detector(tiny_codec(), vae, payload=scheme)
    calibrated = tiny_codec()
    calibrated.calibration = Calibration.measure(range(100))
    for found, says in [
        (detector.decide(logits_for(secret), secret[None], "x.png", ("a note",)), "64 of 64 bits match"),
        (detector.decide(logits_for(secret)), "prove nothing"),
        (reads.decide(logits_for(scheme.encode(9, 1))), "account 9, nonce 1"),
        (reads.decide(logits_for(secret)), "no payload verifies"),
        (Detector(calibrated, vae).decide(logits_for(secret)), "no secret was given"),
    ]:
        values = json.loads(json.dumps(found.to_dict()))
        assert values["secret"] == found.secret
        assert len(values["margins"]) == 64
        console = Console(record=True, width=200, file=io.StringIO())
        console.print(found)
        text = console.export_text()
        assert says in text
        assert found.secret in text
        assert all(note in text for note in found.notes)


def test_bad_arguments(vae):
    with pytest.raises(FamilyError, match="16 channels"):
        Detector(tiny_codec(16), vae)
    with pytest.raises(ValueError, match="cannot reach"):
        Detector(tiny_codec(), vae, fpr=1e-30)
    with pytest.raises(ValueError, match="batch_size"):
        Detector(tiny_codec(), vae, batch_size=0)
    with pytest.raises(ValueError, match="give vae="):
        Detector.from_pretrained(tiny_codec())


def test_from_pretrained(tmp_path, vae, secret):
    folder = tiny_codec(family="sd").save_pretrained(tmp_path / "codec")
    with pytest.raises(ValueError, match="comes without an autoencoder"):
        Detector.from_pretrained(folder)
    vae.save_pretrained(tmp_path / "pipeline" / "vae")
    for source in (tmp_path / "pipeline", tmp_path / "pipeline" / "vae", vae):
        found = Detector.from_pretrained(folder, source, fpr=1e-6).to("cpu").detect(picture(), secret)
        assert found.fpr == 1e-6
    vae.save_pretrained(folder / "vae")
    assert isinstance(Detector.from_pretrained(folder).detect(picture()), Detection)
    assert diffmark.Detector is Detector


def test_loading_a_vae(tmp_path, vae):
    with pytest.raises(FileNotFoundError, match="neither a vae's folder nor a pipeline's"):
        load_vae(tmp_path)
    (tmp_path / "config.json").write_text('{"_class_name": "NoSuchAutoencoder"}')
    with pytest.raises(FamilyError, match="NoSuchAutoencoder"):
        load_vae(tmp_path)


def test_encode_and_decode_scale_and_shift():
    import diffusers

    torch.manual_seed(0)
    shifted = _vae(16, scaling_factor=1.5305, shift_factor=0.0609).eval()
    pixels = torch.rand(1, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        raw = shifted.encode(pixels).latent_dist.mode()
        torch.testing.assert_close(encode(shifted, pixels), (raw - 0.0609) * 1.5305)
        torch.testing.assert_close(decode(shifted, encode(shifted, pixels)), shifted.decode(raw).sample)
        tiny = diffusers.AutoencoderTiny(
            encoder_block_out_channels=(8, 8, 8, 8), decoder_block_out_channels=(8, 8, 8, 8)
        )
        latents = encode(tiny.eval(), pixels)
        torch.testing.assert_close(latents, tiny.encode(pixels).latents)
        assert decode(tiny, latents).shape == pixels.shape
