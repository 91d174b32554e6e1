from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from conftest import tiny_codec
from PIL import Image

from diffmark import cli
from diffmark.codec import Codec, CodecConfig, whiten
from diffmark.codec_files import CodecError
from diffmark.detection import Detector
from diffmark.fast import OnnxPixelDecoder, PixelDecoder, export_onnx, load_pixel_decoder, save_pixel_decoder
from diffmark.injection import Injection
from diffmark.training.pixel_decoder import Examples, PixelDecoderConfig, train_pixel_decoder
from diffmark.vista.training.config import LoopConfig

CONFIG = CodecConfig(
    length=16,
    height=16,
    width=16,
    embed_dim=16,
    encoder_widths=(8,),
    decoder_widths=(8, 16),
    decoder_hidden=(),
    matched_filter=True,
    injection=Injection("final"),
    deviation=0.3,
)


@pytest.fixture
def made():
    torch.manual_seed(0)
    decoder = PixelDecoder(Codec(CONFIG))
    return decoder.half().float().eval()


@pytest.fixture
def folder(made, tmp_path):
    codec = Codec(CONFIG)
    codec.decoder = made.decoder
    codec.save_pretrained(tmp_path)
    save_pixel_decoder(made, tmp_path)
    return tmp_path


def test_saved_and_loaded_it_reads_the_same(made, folder):
    pixels = torch.rand(2, 3, *made.image_size) * 2 - 1
    assert made.image_size == (64, 64)  # half of 16 x 8 pixels
    torch.testing.assert_close(load_pixel_decoder(folder)(pixels), made(pixels))


def test_a_codec_without_one_says_so(tmp_path):
    tiny_codec().save_pretrained(tmp_path)
    with pytest.raises(CodecError, match="has no pixel decoder"):
        Detector.from_pretrained(tmp_path, fast=True)


def test_it_belongs_to_the_codec_that_it_was_distilled_for(folder):
    again = Codec.from_pretrained(folder)
    again.save_pretrained(folder, dtype=torch.float16)
    load_pixel_decoder(folder)  # the same weights, whatever their precision
    torch.nn.init.normal_(again.decoder.filters.weight)
    again.save_pretrained(folder)
    with pytest.raises(CodecError, match="distilled for another codec"):
        load_pixel_decoder(folder)


def test_the_detector_reads_with_it_and_needs_no_autoencoder(folder):
    detector = Detector.from_pretrained(folder, fast=True)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8))
    found = detector.detect(image)
    small = np.asarray(image.resize((64, 64), Image.Resampling.LANCZOS), np.float32)
    pixels = torch.from_numpy(small.transpose(2, 0, 1) / 127.5 - 1)[None]
    with torch.no_grad():
        expected = load_pixel_decoder(folder)(pixels)[0].numpy()
    np.testing.assert_allclose(found.logits, expected, atol=1e-5)
    with pytest.raises(ValueError, match="no autoencoder"):
        Detector.from_pretrained(Codec(CONFIG), fast=True)
    with pytest.raises(ValueError, match="needs an autoencoder"):
        Detector(Codec(CONFIG), None)


def test_onnx_gives_the_same_logits(folder, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    decoder = load_pixel_decoder(folder)
    file = export_onnx(decoder, tmp_path / "onnx" / "pixel.onnx")
    read = OnnxPixelDecoder(file)
    pixels = torch.rand(3, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        np.testing.assert_allclose(read(pixels.numpy()), decoder(pixels).numpy(), atol=1e-4)
    assert read.image_size == (64, 64)


def test_the_command_exports(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    file = tmp_path / "onnx" / "pixel.onnx"
    monkeypatch.setattr(sys, "argv", ["diffmark", "export-onnx", str(folder), str(file)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0, capsys.readouterr().out.strip()) == (0, str(file))
    assert OnnxPixelDecoder(file)(np.zeros((1, 3, 64, 64), np.float32)).shape == (1, 16, 2)


def test_it_learns_to_read_marked_pictures(tmp_path):
    torch.manual_seed(0)
    codec = Codec(CONFIG)
    torch.nn.init.normal_(codec.decoder.filters.weight)
    secrets = torch.randint(0, 2, (24, CONFIG.length))
    patterns = codec.decoder.filters.weight.detach().view(CONFIG.length, 4, 16, 16)
    latents = torch.einsum("bl,lchw->bchw", 2.0 * secrets - 1, patterns)
    colours = torch.nn.functional.interpolate(latents[:, :3] / latents.std(), scale_factor=4)
    pictures = (colours * 20 + 128).clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    loop = LoopConfig(steps=60, batch=8, learning_rate=5e-3, warmup=1, decay=10, log_every=10)
    config = PixelDecoderConfig(loop, attacked_share=0.2)
    train_pixel_decoder(config, codec, Examples(pictures, whiten(latents), secrets), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[0]["accuracy"] < lines[-1]["accuracy"]
    assert lines[-1]["accuracy"] > 0.9
    assert (tmp_path / "pixel.safetensors").is_file()
