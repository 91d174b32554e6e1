"""Tiny autoencoders (taesd and its kin) as diffusers' AutoencoderTiny: from two files of weights, or a folder."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from diffmark.vae import load_vae


def open_autoencoder(source: str | Path) -> nn.Module:
    """`STEM` of STEM_encoder.safetensors and STEM_decoder.safetensors, or what `load_vae` takes; in float32."""
    encoder, decoder = (Path(f"{source}_{part}.safetensors") for part in ("encoder", "decoder"))
    if encoder.is_file() and decoder.is_file():
        return _from_files(encoder, decoder)
    return load_vae(source).float()


def _from_files(encoder: Path, decoder: Path) -> nn.Module:
    from diffusers import AutoencoderTiny
    from safetensors.torch import load_file

    state: dict[str, Tensor] = {f"encoder.layers.{name}": value for name, value in load_file(encoder).items()}
    for name, value in load_file(decoder).items():
        number, rest = name.split(".", 1)  # the author's first layer, a clamp, has no number in diffusers
        state[f"decoder.layers.{int(number) - 1}.{rest}"] = value
    channels = state["decoder.layers.0.weight"].shape[1]
    autoencoder: nn.Module = AutoencoderTiny(latent_channels=channels)
    autoencoder.load_state_dict({name: value.float() for name, value in state.items()})
    return autoencoder.eval()
