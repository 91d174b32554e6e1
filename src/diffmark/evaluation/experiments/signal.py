"""Signal analysis: what the mark looks like in pixels and in latents, and how training brought it about."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.harness import Harness, Row
from diffmark.metrics import psnr

SHOWN = 3  # pictures of the first method; one of every other
AVERAGED = 64  # deltas, for their spectrum
POINTS = 300  # of a training curve
CURVES = ("accuracy", "accuracy_noisy", "measured_accuracy", "measured_psnr", "delta_deviation", "loss")


def signal(harness: Harness) -> Iterator[Row]:
    """Pictures with and without the mark; delta by channel and its spectrum; how training went."""
    for number, method in enumerate(harness.methods):
        specs = harness.specs(1 if number else min(SHOWN, harness.extent.victims))
        for plain, marked, spec in zip(
            harness.plain(specs), harness.marked(method, specs), specs, strict=True
        ):
            yield _pair(method, plain, marked, spec.prompt)
        if isinstance(method, DiffMark):
            yield from _delta(method)
    if harness.training is not None:
        yield from _progression(harness)


def _pair(method: Method, plain: Image.Image, marked: Image.Image, prompt: str) -> Row:
    difference = np.asarray(marked, np.float64) - np.asarray(plain, np.float64)
    row: Row = {"method": method.name, "part": "pictures", "prompt": prompt, "psnr": psnr(plain, marked)}
    row |= {"largest_change": float(np.abs(difference).max())}
    row |= {"radial_power": radial_profile(spectrum(difference.mean(axis=2)[None]))[0].tolist()}
    amplified = Image.fromarray(np.clip(127.5 + 10 * difference, 0, 255).astype(np.uint8))
    overlay = _overlay(plain, np.abs(difference).mean(axis=2))
    shown = {"plain": plain, "marked": marked, "difference": amplified, "overlay": overlay}
    return row | {"shown": {name: _jpeg(image) for name, image in shown.items()}}


def _delta(method: DiffMark) -> Iterator[Row]:
    secrets = np.random.default_rng(3).integers(0, 2, (AVERAGED, method.bits)).astype(np.uint8)
    delta = method.codec.delta(secrets).detach().cpu().double().numpy()  # (N, C, h, w)
    power = spectrum(delta).mean(axis=0)  # (C, h, w)
    for channel in range(delta.shape[1]):
        row: Row = {"method": method.name, "part": "delta", "channel": channel}
        row |= {
            "deviation": float(delta[:, channel].std()),
            "largest": float(np.abs(delta[:, channel]).max()),
        }
        # Two secrets' deltas are alike as far as the mean over all secrets goes.
        row["shared"] = float((delta[:, channel].mean(axis=0) ** 2).mean() / (delta[:, channel] ** 2).mean())
        row["radial_power"] = radial_profile(power[channel][None])[0].tolist()
        row |= {
            "delta": delta[0, channel].round(4).tolist(),
            "spectrum": np.log10(power[channel]).round(3).tolist(),
        }
        yield row


def _progression(harness: Harness) -> Iterator[Row]:
    from diffmark.training.plotting import read_log

    if harness.training is None:
        return
    lines = read_log(harness.training)
    for name in CURVES:
        points = [(line["step"], line[name]) for line in lines if name in line]
        step = max(len(points) // POINTS, 1)
        if points:
            kept = [*points[::step], points[-1]]
            yield {
                "part": "training",
                "curve": name,
                "last": points[-1][1],
                "points": [list(p) for p in kept],
            }


def spectrum(fields: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred power spectrum of each field, (..., h, w)."""
    return np.abs(np.fft.fftshift(np.fft.fft2(fields), axes=(-2, -1))) ** 2 / fields[0].size


def radial_profile(power: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean power at each whole distance from the centre up to the half side, (N, h, w) -> (N, side // 2)."""
    height, width = power.shape[-2:]
    y, x = np.indices((height, width))
    radius = np.hypot(y - height // 2, x - width // 2).round().astype(int)
    rings = [power[:, radius == ring].mean(axis=1) for ring in range(min(height, width) // 2)]
    return np.stack(rings, axis=1)


def _overlay(plain: Image.Image, strength: NDArray[np.float64]) -> Image.Image:
    """The picture in grey, the mark's strength in red over it."""
    grey = np.asarray(plain.convert("L"), np.float64)[..., None].repeat(3, axis=2) * 0.7
    share = (strength / max(float(np.quantile(strength, 0.99)), 1e-9)).clip(0, 1)[..., None]
    return Image.fromarray((grey * (1 - share) + share * np.array([230, 40, 20])).astype(np.uint8))


def _jpeg(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=92)
    return base64.b64encode(buffer.getvalue()).decode()
