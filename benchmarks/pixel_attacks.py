"""What the benchmarks of the pixel layer do to pictures: named distortions, WAVES, round trips of autoencoders."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from pixel_corpus import frame

from diffmark.attacks import distortion, everyday

STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0)  # of WAVES
# The file and the latent channels of each autoencoder.
ROUND_TRIPS = {
    "taesdxl": ("taesdxl", 4),
    "taesd3": ("taesd3", 16),
    "taef1": ("taef1", 16),
    "taesd": ("taesd", 4),
}
TURNS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}

Rng = np.random.Generator
Distort = Callable[[Image.Image, Rng], Image.Image]


def by(distort: Callable[[Image.Image, float, Rng], Image.Image], value: float) -> Distort:
    return lambda image, rng: distort(image, value, rng)


def chain(*steps: Distort) -> Distort:
    def distort(image: Image.Image, rng: Rng) -> Image.Image:
        for step in steps:
            image = step(image, rng)
        return image

    return distort


def cropped(area: float) -> Distort:
    return lambda image, rng: distortion.crop(image, area, rng)


def turned(angle: int) -> Distort:
    return lambda image, rng: image.transpose(TURNS[angle])


def mirrored(image: Image.Image, rng: Rng) -> Image.Image:
    return ImageOps.mirror(image)


def grey(image: Image.Image, rng: Rng) -> Image.Image:
    return image.convert("L").convert("RGB")


def half_and_back(image: Image.Image, rng: Rng) -> Image.Image:
    return everyday.resize(image, 0.5, rng).resize(image.size, Image.Resampling.BICUBIC)


def unchanged(image: Image.Image, rng: Rng) -> Image.Image:
    return image


KEPT: dict[str, Distort] = {
    "nothing": unchanged,
    "JPEG 75": by(distortion.jpeg, 75),
    "JPEG 50": by(distortion.jpeg, 50),
    "WebP 50": by(everyday.webp, 50),
    "AVIF 50": by(everyday.avif, 50),
    "half size": by(everyday.resize, 0.5),
    "half size and back": half_and_back,
    "double size": by(everyday.resize, 2),
    "noise 0.05": by(distortion.noise, 0.05),
    "brightness 2": by(distortion.brightness, 2),
    "contrast 2": by(distortion.contrast, 2),
    "gamma 2": by(everyday.gamma, 2),
    "gamma 0.5": by(everyday.gamma, 0.5),
    "greyscale": grey,
}
MOVED: dict[str, Distort] = {
    **{f"rotation {angle}": by(distortion.rotation, angle) for angle in (9, 27, 45)},
    **{f"rotation {angle}": turned(angle) for angle in TURNS},
    "mirror": mirrored,
    **{f"crop to {area}": cropped(area) for area in (0.9, 0.7, 0.5)},
    "padding 0.2 a side": by(everyday.padding, 0.2),
    "screenshot in a frame": frame,
}
COMBINED: dict[str, Distort] = {
    "rotation 30, crop 0.6, JPEG 75": chain(
        by(distortion.rotation, 30), cropped(0.6), by(distortion.jpeg, 75)
    ),
    "crop 0.5, JPEG 75": chain(cropped(0.5), by(distortion.jpeg, 75)),
    "crop 0.9, resize 0.7, JPEG 75": chain(cropped(0.9), by(everyday.resize, 0.7), by(distortion.jpeg, 75)),
}
HARSH: dict[str, Distort] = {
    "JPEG 25": by(distortion.jpeg, 25),
    "JPEG 10": by(distortion.jpeg, 10),
    "noise 0.1": by(distortion.noise, 0.1),
    "erasing 25%": by(distortion.erasing, 0.25),
    "crop to 0.25": cropped(0.25),
    "blur 8": by(distortion.blur, 8),
    "blur 20": by(distortion.blur, 20),
}


def waves() -> dict[str, Distort]:
    """Each distortion of WAVES at every strength, and its combinations at equal strengths."""
    known = {attack.name: attack for attack in distortion.ATTACKS}
    geometric, photometric = ("rotation", "resized_crop", "erasing"), ("brightness", "contrast")
    groups = {name: (name,) for name in known} | {
        "geometric": geometric,
        "photometric": photometric,
        "degradation": ("blur", "noise", "jpeg"),
        "all": (*geometric, *photometric, "blur", "noise", "jpeg"),
    }
    return {
        f"waves {group} {strength}": chain(
            *(by(known[name].distort, known[name].value(strength)) for name in names)
        )
        for group, names in groups.items()
        for strength in STRENGTHS
    }


@cache
def tiny_autoencoder(folder: str, stem: str, channels: int) -> Any:
    """A distilled autoencoder from its two files of weights."""
    import torch
    from diffusers import AutoencoderTiny
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    model, state = AutoencoderTiny(latent_channels=channels), {}
    for name, value in load_file(Path(folder) / f"{stem}_encoder.safetensors").items():
        state[f"encoder.layers.{name}"] = value.float()
    for name, value in load_file(Path(folder) / f"{stem}_decoder.safetensors").items():
        layer, rest = name.split(".", 1)
        state[f"decoder.layers.{int(layer) - 1}.{rest}"] = value.float()
    model.load_state_dict(state)
    return model.eval().to(memory_format=torch.channels_last)


def round_trip(folder: str, stem: str, channels: int) -> Distort:
    """Encoded, decoded, rounded to 8 bits."""

    def distort(image: Image.Image, rng: Rng) -> Image.Image:
        import torch

        model = tiny_autoencoder(folder, stem, channels)
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
        with torch.no_grad():
            made = model.decode(model.encode(pixels).latents).sample[0]
        levels = ((made.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0)
        return Image.fromarray(levels.numpy())

    return distort


def attacks(autoencoders: str | None) -> dict[str, Distort]:
    """All of them by name, in the order of the table."""
    found = {**KEPT, **MOVED, **COMBINED, **HARSH}
    if autoencoders:
        trips = {
            name: round_trip(autoencoders, stem, channels) for name, (stem, channels) in ROUND_TRIPS.items()
        }
        found |= {**trips, "taesd twice": chain(trips["taesd"], trips["taesd"])}
    return found | waves()
