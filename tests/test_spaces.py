"""Latents in and out of autoencoders of every kind: shift and scale, statistics a channel, patches, frames."""

from __future__ import annotations

import diffusers
import pytest
import torch
from conftest import _vae
from pipelines import build, flux2_vae, qwen_vae, wan_vae

from diffmark.latent.spaces import latent_channels, pixels_per_latent, scaled, unscaled, vae_family
from diffmark.latent.vae import decode, encode

VAES = {
    "sd": lambda: _vae(scaling_factor=0.18215),
    "sd3": lambda: _vae(16, scaling_factor=1.5305, shift_factor=0.0609),
    "flux2": flux2_vae,
    "qwen": qwen_vae,
    "wan": wan_vae,
    "playground": lambda: _vae(
        scaling_factor=0.5, latents_mean=[-1.6, 1.1, 2.6, 2.6], latents_std=[8.4, 6.0, 3.9, 5.0]
    ),
}


@pytest.mark.parametrize("name", VAES)
def test_scaled_latents_go_through_the_autoencoder_and_back(name):
    torch.manual_seed(0)
    vae = VAES[name]().eval()
    pixels = torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        latents = encode(vae, pixels)
        assert latents.shape == (
            2,
            latent_channels(vae),
            64 // pixels_per_latent(vae),
            64 // pixels_per_latent(vae),
        )
        assert decode(vae, latents).shape == pixels.shape
    torch.testing.assert_close(scaled(vae, unscaled(vae, latents)), latents, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["StableDiffusion", "SD3", "FLUX", "FLUX.2", "Qwen-Image", "Wan", "LTX-Video", "Sana"]
)
def test_decoding_is_what_the_pipeline_does(name, monkeypatch):
    """The raw latents that a pipeline hands to its vae are `unscaled` of those it denoised."""
    kind = build(name)
    denoised = kind.run(output_type="latent")
    denoised = denoised.frames if kind.frames else denoised.images
    asked, vae = [], kind.pipe.vae
    plain = vae.decode
    monkeypatch.setattr(vae, "decode", lambda z, *a, **k: asked.append(z) or plain(z, *a, **k), raising=False)
    kind.run(output_type="pt")
    raw = asked[0]
    height, width = raw.shape[-2:]
    if denoised.ndim == 3 and name == "LTX-Video":
        denoised = denoised.transpose(1, 2).unflatten(2, raw.shape[2:])
    elif denoised.ndim == 3:  # tokens of 2 x 2 patches
        parts = denoised.view(1, height // 2, width // 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
        denoised = parts.reshape(1, -1, height, width)
    found = unscaled(vae, denoised)
    torch.testing.assert_close(found.view_as(raw), raw, atol=1e-4, rtol=1e-4)


def test_families_are_told_by_their_autoencoders():
    found = {name: vae_family(make()) for name, make in VAES.items()}
    names = {name: family and family.name for name, family in found.items()}
    assert names == {
        "sd": "sd", "sd3": "sd3", "flux2": "flux2", "qwen": "wan21", "wan": "wan21", "playground": None
    }  # fmt: skip
    assert vae_family(diffusers.AutoencoderTiny()) is None  # its latents are scaled already
    assert vae_family(None) is None
