from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from conftest import tiny_codec
from safetensors.torch import load_file, save_file

from diffmark.latent.calibration import Calibration, evidence
from diffmark.latent.codec import Codec, stretch
from diffmark.latent.config import CodecConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.files import CodecError, bundled_codecs
from diffmark.latent.injection import Injection
from diffmark.latent.networks import DeltaEncoder, SecretDecoder, whiten
from diffmark.secret import random_secrets


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_the_paper_counts_295265_and_2339704_parameters():
    config = CodecConfig()
    assert (config.length, config.channels, config.height, config.width) == (64, 4, 64, 64)
    assert parameters(DeltaEncoder(config)) == 295_265
    assert parameters(SecretDecoder(config)) == 2_339_704


@pytest.mark.parametrize("length", [48, 128])
@pytest.mark.parametrize(("channels", "height", "width"), [(4, 32, 32), (16, 64, 32)])
def test_other_lengths_channels_and_sizes(length, channels, height, width):
    codec = Codec(CodecConfig(length=length, channels=channels, height=height, width=width))
    secrets = random_secrets(2, length)
    delta = codec.delta(secrets)
    assert delta.shape == (2, channels, height, width)
    assert codec.decode(delta).shape == (2, length, 2)
    assert codec.config.image_size == (8 * height, 8 * width)


def test_a_size_that_cannot_be_halved_is_refused():
    with pytest.raises(ValueError, match="multiples of 32"):
        CodecConfig(height=40)


def test_delta_is_alpha_times_the_mean_and_noisy_only_in_training(secret):
    codec = tiny_codec()
    bits = torch.from_numpy(secret[None])
    mean, log_variance = codec.encoder.distribution(bits)
    torch.testing.assert_close(codec.delta(secret), codec.encoder.alpha * mean)
    codec.encoder.train()
    torch.manual_seed(0)
    drawn = codec.encoder(bits)
    mean, log_variance = codec.encoder.distribution(bits)
    torch.manual_seed(0)
    eps = torch.randn_like(mean)
    torch.testing.assert_close(drawn, codec.encoder.alpha * (mean + torch.exp(0.5 * log_variance) * eps))
    assert torch.equal(codec.delta(secret), codec.delta(secret))
    assert codec.encoder.training  # delta() leaves the mode as it was


def test_the_embedding_is_the_sum_over_bits(secret):
    """x = sum_i W[2i + s_i], then X_d = x_d * B_d."""
    encoder = tiny_codec().encoder
    x = sum(encoder.embedding.weight[2 * i + int(s)] for i, s in enumerate(secret))
    expected = encoder.mean(encoder.refine((x[:, None, None] * encoder.basis)[None]))
    torch.testing.assert_close(encoder.distribution(torch.from_numpy(secret[None]))[0], expected)


@pytest.mark.parametrize("size", [(8, 16), (24, 24), (4, 6)])
def test_stretch_keeps_the_standard_deviation(size, secret):
    delta = tiny_codec().delta(secret)
    stretched = stretch(delta, size)
    assert stretched.shape[-2:] == size
    assert float(stretched.std()) == pytest.approx(float(delta.std()), rel=1e-4)
    back = stretch(stretched, (8, 8))
    if min(size) >= 8:
        correlation = torch.corrcoef(torch.stack([delta.flatten(), back.flatten()]))[0, 1]
        assert correlation > 0.75


def test_decode_takes_latents_of_any_size_and_says_which_shape_it_wants(codec):
    assert codec.decode(torch.randn(3, 4, 16, 24)).shape == (3, 64, 2)
    assert codec.decode(torch.randn(1, 4, 8, 8, dtype=torch.float16)).dtype == torch.float32
    with pytest.raises(ValueError, match=r"\(B, 4, h, w\), got \(1, 16, 8, 8\)"):
        codec.decode(torch.randn(1, 16, 8, 8))


def test_save_and_load(tmp_path, secret):
    codec = tiny_codec(family="sd", injection=Injection("late", 2.0, 0.3))
    codec.calibration = Calibration.measure(range(100), {"images": "a hundred"}, "0123456789abcdef")
    codec.provenance = {"command": "test"}
    again = Codec.from_pretrained(codec.save_pretrained(tmp_path / "codec"))
    assert again.config == codec.config
    assert again.calibration == codec.calibration
    assert again.provenance == codec.provenance
    assert torch.equal(again.delta(secret), codec.delta(secret))
    half = Codec.from_pretrained(codec.save_pretrained(tmp_path / "half", torch.float16))
    assert load_file(tmp_path / "half" / "codec.safetensors")["encoder.basis"].dtype == torch.float16
    torch.testing.assert_close(half.delta(secret), codec.delta(secret), atol=1e-3, rtol=1e-2)


@pytest.fixture
def saved(tmp_path):
    return tiny_codec().save_pretrained(tmp_path / "codec")


def rewrite(folder, **changes):
    document = json.loads((folder / "config.json").read_text())
    document.update(changes)
    (folder / "config.json").write_text(json.dumps(document))


def resign(folder):
    import hashlib

    digest = hashlib.sha256((folder / "codec.safetensors").read_bytes()).hexdigest()
    rewrite(folder, sha256={"codec.safetensors": digest})


def test_damaged_codecs_give_clear_errors(saved):
    weights, config = saved / "codec.safetensors", saved / "config.json"
    whole, text = weights.read_bytes(), config.read_text()

    def fails(says):
        with pytest.raises(CodecError, match=says):
            Codec.from_pretrained(saved)
        weights.write_bytes(whole)
        config.write_text(text)

    weights.write_bytes(whole[:-100])
    fails("truncated or altered")
    weights.write_bytes(b"\x80\x04not safetensors")
    resign(saved)
    fails("is not a safetensors file")
    save_file({"something": torch.zeros(3)}, weights)
    resign(saved)
    fails("other tensors than a codec's")
    state = load_file(weights)
    state["encoder.basis"] = state["encoder.basis"][:, :4].contiguous()
    save_file(state, weights)
    resign(saved)
    fails(r"encoder.basis has shape \(16, 4, 8\), but config.json asks for \(16, 8, 8\)")
    weights.unlink()
    fails("is missing")
    config.write_text("{")
    fails("is not JSON")
    config.write_text('{"format": "other"}')
    fails("is not a codec's")
    rewrite(saved, config={"colour": "red"})
    fails("does not describe a codec")
    for wrong in (
        {"height": 7},
        {"length": -1},
        {"embed_dim": 10**12},
        {"decoder_widths": []},
        {"width": True},
    ):
        rewrite(saved, config=wrong)
        fails("does not describe a codec")
    rewrite(saved, sha256=None)
    fails("truncated or altered")
    rewrite(saved, version=99)
    fails("has version 99, this DiffMark reads those up to 2")
    config.unlink()
    fails("is missing")


def test_where_codecs_are_looked_for(tmp_path, saved, monkeypatch):
    with pytest.raises(CodecError, match="not bundled"):
        Codec.from_pretrained("nosuch")
    with pytest.raises(CodecError, match="is a file"):
        Codec.from_pretrained(saved / "config.json")
    import huggingface_hub

    asked = {}

    def snapshot(repository, allow_patterns, ignore_patterns):
        asked["repository"], asked["patterns"] = repository, allow_patterns
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert Codec.from_pretrained("someone/codec").config == tiny_codec().config
    assert asked["repository"] == "someone/codec"
    assert {"config.json", "codec.safetensors"} <= set(asked["patterns"])
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(CodecError, match="the hub did not give a codec"):
        Codec.from_pretrained("someone/nothing")
    assert isinstance(bundled_codecs(), list)


def test_calibration_counts_conservatively():
    calibration = Calibration.measure(range(1000))
    assert calibration.p_value(-1) == 1.0
    assert calibration.p_value(2000) == pytest.approx(1e-3, rel=0.01)
    assert calibration.p_value(950.5) >= 49 / 1001
    for score in range(0, 1000, 7):  # never below the true share of negatives at least as sure
        assert calibration.p_value(score) >= (1000 - score) / 1001
    with pytest.raises(ValueError, match="at least 20"):
        Calibration.measure([1, 2])


def test_a_calibration_knows_its_autoencoders_as_far_as_it_was_told():
    a, b, unknown = (Calibration.measure(range(100), vae=name) for name in ("a", "b", None))
    assert (a.vaes, unknown.vaes) == (("a",), ())
    assert a.stricter(b).vaes == ("a", "b")
    assert a.stricter(a).vaes == ("a",)
    assert a.stricter(unknown).vaes == unknown.stricter(a).vaes == ()
    old = a.to_dict()
    del old["vaes"]
    assert Calibration.from_dict(old) == unknown


def test_evidence_is_how_sure_the_decoder_is():
    assert evidence([-1, 3]) == 2


@pytest.mark.parametrize("name", ["sd", "sdxl", "sd3", "flux"])
def test_a_retired_codec_says_what_to_use(name):
    with pytest.raises(CodecError, match=f"{name!r} was retired.*--codec pixel.*DiffMark 0.1"):
        Codec.from_pretrained(name)


def test_settings_of_retired_codecs_are_known_in_older_files(saved):
    """Files of DiffMark 0.1 name them all; only the codecs that were retired used them."""
    path = saved / "config.json"
    document = json.loads(path.read_text())
    calibration = {**Calibration.measure(range(100)).to_dict(), "kind": "margin"}
    older = {
        "version": 1,
        "config": document["config"] | {"fitted": False, "embed_strength": 1.0},
        "calibration": calibration,
    }
    path.write_text(json.dumps(document | older))
    assert Codec.from_pretrained(saved).config == tiny_codec().config
    for name, value in (("fitted", True), ("embed_strength", 1.4)):
        path.write_text(json.dumps(document | {"version": 1, "config": document["config"] | {name: value}}))
        with pytest.raises(CodecError, match=f"{name} is of codecs that were retired"):
            Codec.from_pretrained(saved)
    path.write_text(json.dumps(document | {"calibration": calibration | {"kind": "evenness"}}))
    with pytest.raises(CodecError, match="evidence of codecs that were retired"):
        Codec.from_pretrained(saved)


def test_whitening_takes_the_picture_out_and_leaves_the_mark():
    torch.manual_seed(0)
    ramp = torch.linspace(-2, 2, 32).expand(1, 4, 32, 32)
    inner = (..., slice(2, -2), slice(2, -2))
    assert whiten(ramp)[inner].abs().max() < 1e-3  # a smooth picture is nothing
    mark = 0.1 * torch.randn(1, 4, 32, 32)
    rough = torch.where(torch.arange(32) < 16, 0.0, 1.0) * torch.randn(1, 4, 32, 32)
    white = whiten(ramp + mark + rough)
    left, right = white[..., 2:13].std(), white[..., 19:-2].std()
    assert float(left) == pytest.approx(float(right), rel=0.15)  # rough places count no more than smooth ones
    cosine = torch.nn.functional.cosine_similarity(white[..., :13].flatten(), mark[..., :13].flatten(), dim=0)
    assert cosine > 0.8


def test_linear_filters_read_what_it_is_matched_to():
    """Filters equal to the deltas of the bits read a mark that is lost in the latents of a picture."""
    torch.manual_seed(0)
    config = CodecConfig(
        length=8, height=32, width=32, decoder_widths=(4,), decoder_hidden=(), linear_readout=True
    )
    decoder = SecretDecoder(config).eval()
    codes = torch.randn(8, 4, 32, 32).sign()
    secrets = torch.randint(0, 2, (16, 8))
    delta = torch.einsum("bl,lchw->bchw", 2.0 * secrets - 1, codes) * 0.02
    picture = torch.randn(16, 4, 32, 32).cumsum(2).cumsum(3) / 10
    silent = decoder(picture + delta)
    assert (silent.argmax(-1) == secrets).float().mean() < 0.8  # not yet
    with torch.no_grad():
        decoder.filters.weight.copy_(codes.flatten(1))
    assert (decoder(picture + delta).argmax(-1) == secrets).float().mean() > 0.97


def test_other_modes_have_doses_of_their_own():
    dosing = Dosing(Injection("final"), doses={"late": 5.0})
    assert dosing.in_mode("final") is dosing.injection
    assert dosing.in_mode("late") == Injection("late", 5.0)
    assert dosing.in_mode("persistent") == Injection("persistent", 1.0)
    assert Dosing.from_dict(json.loads(json.dumps(asdict(dosing)))) == dosing
    with pytest.raises(ValueError, match="unknown injection mode 'sometimes'"):
        Dosing(doses={"sometimes": 1.0})


@pytest.mark.parametrize("nested", [False, True])
def test_codecs_that_were_saved_as_version_1_are_read(tmp_path, nested):
    """They name the dosing among the networks' settings, or in a table there, and linear filters otherwise."""
    config = CodecConfig(length=8, height=32, width=32, decoder_widths=(4,), linear_readout=True)
    codec = Codec(config, Dosing(Injection("final", 2.0), 0.1, {"late": 5.0}))
    codec.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    document = json.loads(file.read_text())
    dosing = document.pop("dosing")
    document["config"] |= {"dosing": dosing} if nested else dosing
    document["config"]["matched_filter"] = document["config"].pop("linear_readout")
    document["config"]["fitted"] = False
    file.write_text(json.dumps(document | {"version": 1}))
    again = Codec.from_pretrained(tmp_path)
    assert (again.config, again.dosing) == (codec.config, codec.dosing)
    document["config"]["fitted"] = True
    file.write_text(json.dumps(document | {"version": 1}))
    with pytest.raises(CodecError, match="fitted is of codecs that were retired"):
        Codec.from_pretrained(tmp_path)
