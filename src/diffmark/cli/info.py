"""`diffmark info`: versions, devices, codecs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from diffmark.cli.opening import Json, show


def info(
    codec: Annotated[str | None, typer.Argument(help="A codec's name, folder, or hub id.")] = None,
    as_json: Json = False,
) -> None:
    """Show versions, devices and codecs, or the card of one codec."""
    values = describe_codec(codec) if codec else describe_installation()
    if as_json:
        show(values, as_json)
        return
    for name, value in values.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        typer.echo(f"{name:12} {', '.join(map(str, text)) if isinstance(text, list) else text}")


def describe_installation() -> dict[str, Any]:
    from importlib.util import find_spec

    from diffmark.latent.files import bundled_codecs
    from diffmark.provenance import versions

    device = "pixel layer only: latent codecs need the extra `diffusion`"
    if find_spec("torch"):
        from diffmark.latent.device import find_device

        device = find_device()
    return {**versions(), "device": device, "codecs": bundled_codecs() or ["none bundled"]}


def describe_codec(source: str) -> dict[str, Any]:
    from diffmark.latent.codec import Codec, NoiseCodec

    codec = Codec.from_pretrained(source)
    calibration = codec.calibration
    uncalibrated = "none are needed" if isinstance(codec, NoiseCodec) else "not calibrated"
    parameters = {name: sum(p.numel() for p in part.parameters()) for name, part in codec.named_children()}
    return {
        "codec": source,
        **asdict(codec.config),
        **asdict(codec.dosing),
        "parameters": parameters,
        "negatives": calibration.negatives if calibration else uncalibrated,
        "measured": calibration.measured if calibration else {},
        "provenance": codec.provenance,
    }
