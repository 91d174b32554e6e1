"""A family's codec and its small autoencoder as they ship: one folder, weights in half precision."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffmark.codec import Codec
from diffmark.codec_files import PIXEL_FILE
from diffmark.fast import PixelDecoder, belongs, save_pixel_decoder
from diffmark.training.family_card import card
from diffmark.vae import load_vae

TRAINING_FILE = "training.json"  # beside an autoencoder: what made it, and how long its training took


def load_half(source: str | Path, own: str | Path, deviation: float | None = None) -> tuple[Codec, nn.Module]:
    """Codec and autoencoder with the weights that half-precision files hold; arithmetic stays in float32."""
    codec, autoencoder = Codec.from_pretrained(source), load_vae(own)
    codec.half().float()
    autoencoder.half().float()
    if deviation is None:
        return codec, autoencoder.eval()
    other = Codec(replace(codec.config, deviation=deviation), codec.calibration, codec.provenance)
    other.load_state_dict(codec.state_dict())
    return other.eval(), autoencoder.eval()


def training_of(own: str | Path) -> dict[str, Any]:
    """What an autoencoder's folder says of its training, as `{"distillation": ...}`, or nothing."""
    file = Path(own) / TRAINING_FILE
    return {"distillation": json.loads(file.read_text())} if file.is_file() else {}


def publish_family(
    codec: Codec,
    autoencoder: nn.Module,
    folder: str | Path,
    found: dict[str, Any],
    pixel_decoder: PixelDecoder | None = None,
) -> Path:
    """Write config.json, codec.safetensors, vae/ and the card with the figures `found` into `folder`.

    A pixel decoder that lies there from another codec is removed.
    """
    from safetensors.torch import load_file, save_file

    folder = codec.save_pretrained(folder, dtype=torch.float16)
    pixel = folder / PIXEL_FILE
    if pixel.is_file() and not belongs(pixel, codec.decoder):
        pixel.unlink()
    if pixel_decoder is not None:
        save_pixel_decoder(pixel_decoder, folder)
    writer: Any = autoencoder
    writer.save_pretrained(folder / "vae")
    if "distillation" in found:
        (folder / "vae" / TRAINING_FILE).write_text(json.dumps(found["distillation"], indent=2) + "\n")
    described = folder / "vae" / "config.json"
    settings = json.loads(described.read_text())
    settings.pop("_name_or_path", None)  # where it lay on the machine that trained it
    settings["family"] = codec.config.family
    described.write_text(json.dumps(settings, indent=2) + "\n")
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    save_file({name: value.half() for name, value in load_file(weights).items()}, weights)
    (folder / "README.md").write_text(card(codec.config, found, codec.provenance))
    return folder
