"""Every pipeline family at tiny size: what is marked how. As a script it writes the table of docs/pipelines.md."""

from __future__ import annotations

import functools
import inspect
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_codec, tiny_noise_codec
from pipelines import BUILDERS, Kind, build

import diffmark
from diffmark.latent.injection import Injection
from diffmark.latent.noise import mix
from diffmark.latent.spaces import vae_family
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.packing import arrange, restore
from diffmark.mark.readback import pictures_of

PAGE = Path(__file__).parents[1] / "docs" / "pipelines.md"
BEGIN, END = "<!-- pipelines -->", "<!-- end pipelines -->"
PICTURE = 256  # pixels a side: enough for the pixel layer
MODES = ("final", "late", "persistent")  # of codecs that add delta
SECRET = "0123456789abcdef"


def latents_of(kind: Kind, **more: Any) -> torch.Tensor:
    output = kind.run(output_type="latent", **more)
    return output.frames if kind.frames else output.images


def mark(kind: Kind, mode: str, **more: Any) -> Any:
    """The generation layer alone, of a codec without training, which cannot be read back."""
    codec = tiny_codec(kind.channels)
    return diffmark.watermark(
        kind.pipe, codec, SECRET, injection=Injection(mode, start=0.9), pixel=False, verify=None, **more
    )


def mark_noise(kind: Kind) -> Any:
    """A pattern in the initial noise, alone."""
    codec = tiny_noise_codec(channels=kind.channels)
    return diffmark.watermark(kind.pipe, codec, SECRET, pixel=False, verify=None)


@pytest.mark.parametrize("name", BUILDERS)
def test_delta_is_added_to_z0_in_the_layout_of_the_pipeline(name):
    kind = build(name)
    plain = latents_of(kind)
    with mark(kind, "final"):
        difference = latents_of(kind) - plain
    delta = tiny_codec(kind.channels).delta(SECRET)
    expected = arrange(delta, difference)
    if name == "FLUX.2 klein":  # its latents are given back as the vae wants them
        vae = kind.pipe.vae
        deviation = (vae.bn.running_var + vae.config.batch_norm_eps).sqrt()
        expected = delta * deviation.view(1, 32, 2, 2).repeat(1, 1, 4, 4)
    torch.testing.assert_close(difference, expected, atol=2e-4, rtol=1e-3)
    assert torch.equal(latents_of(kind), plain)  # the pipeline is as it was


# PixArt-alpha takes z0 of a single step, which only an LCM's scheduler gives.
@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "PixArt-alpha"])
def test_the_share_before_the_first_step_arrives(name):
    """With one step, the persistent mode's whole dose is added before it and nothing after it."""
    kind = build(name)
    plain = latents_of(kind, steps=1)
    with mark(kind, "persistent"):
        assert not torch.equal(latents_of(kind, steps=1), plain)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_pattern_is_in_the_noise_that_the_first_step_starts_from(name, monkeypatch):
    kind, seen, modes = build(name), [], marked_how(name)["injection"]
    step = kind.pipe.scheduler.step

    def listen(output, time, sample, *args, **kwargs):
        seen.append(sample.detach().clone())
        return step(output, time, sample, *args, **kwargs)

    monkeypatch.setattr(kind.pipe.scheduler, "step", listen)
    plain = latents_of(kind)
    first = seen[0]
    seen.clear()
    if "initial" not in modes:
        with (
            pytest.raises(UnmarkableError, match="starts from a picture|pictures, not videos"),
            mark_noise(kind),
        ):
            latents_of(kind)
        assert not seen  # refused before any work
        return
    with mark_noise(kind):
        latents_of(kind)
    delta = tiny_noise_codec(channels=kind.channels).delta(SECRET)
    size, scale = delta.shape[-2:], float(getattr(kind.pipe.scheduler, "init_noise_sigma", 1.0))
    noise = restore(first / scale, kind.channels, size)
    expected = arrange(mix(noise, delta, 0.7), first) * scale
    torch.testing.assert_close(seen[0], expected, atol=1e-3, rtol=1e-3)
    assert torch.equal(latents_of(kind), plain)  # the pipeline is as it was


@functools.cache
def marked_how(name: str) -> dict[str, str]:
    """The row of the table, from trials."""
    kind = build(name)
    space = vae_family(kind.pipe.vae)
    offered = inspect.signature(type(kind.pipe).__call__).parameters
    steps = "callback" if "callback_on_step_end" in offered else "scheduler"
    plain = latents_of(kind)
    modes = []
    for mode in MODES:
        try:
            with mark(kind, mode):
                if not torch.equal(latents_of(kind), plain):
                    modes.append(mode)
        except UnmarkableError:
            pass
    try:
        with mark_noise(kind):
            if not torch.equal(latents_of(kind), plain):
                modes.append("initial")
    except UnmarkableError:
        pass
    with diffmark.watermark(kind.pipe, None, SECRET, verify="raise"):
        output = kind.run(side=PICTURE, output_type="pt")
    pictures = pictures_of(output)
    assert all(diffmark.detect(picture, SECRET, fpr=1e-6, search=False).marked for picture in pictures)
    return {
        "pipeline": f"{name} (`{type(kind.pipe).__name__}`)",
        "latent space": f"{space.name if space else 'unknown'}, {kind.channels} channels",
        "pixel layer": f"each of {kind.frames} frames" if kind.frames else "yes",
        "generation layer through": steps,
        "injection": ", ".join(modes),
    }


@pytest.mark.parametrize("name", BUILDERS)
def test_pixels_are_marked_and_the_table_says_how(name):
    row = marked_how(name)
    assert row["injection"], "no injection mode reaches its latents"
    cells = " | ".join(row.values())
    assert f"| {cells} |" in PAGE.read_text(), f"run `python tests/test_pipelines.py`: {cells}"


def test_every_frame_is_marked():
    kind = build("Wan")
    with diffmark.watermark(kind.pipe, None, SECRET, verify="raise"):
        (video,) = kind.run(side=PICTURE, output_type="np", steps=1).frames
    assert len(video) == kind.frames
    assert all(diffmark.detect(np.asarray(frame), SECRET, fpr=1e-6, search=False).marked for frame in video)


def test_several_secrets_in_a_batch_of_packed_latents():
    from diffmark.secret import random_secrets

    kind, secrets = build("FLUX"), random_secrets(2)
    codec = tiny_codec(16)
    plain = latents_of(kind, num_images_per_prompt=2)
    settings = {"injection": Injection("final"), "pixel": False, "verify": None}
    with diffmark.watermark(kind.pipe, codec, secrets, **settings):
        difference = latents_of(kind, num_images_per_prompt=2) - plain
    torch.testing.assert_close(difference, arrange(codec.delta(secrets), plain), atol=2e-4, rtol=1e-3)


def test_a_pipeline_without_callback_delivers_every_share(monkeypatch):
    """A silent denoiser leaves PixArt's latents as they are, up to the scale of the last step."""
    kind = build("PixArt-Sigma")
    monkeypatch.setattr(
        kind.pipe.transformer,
        "forward",
        lambda sample, **kwargs: (torch.zeros_like(sample).repeat(1, 2, 1, 1),),
    )
    plain = latents_of(kind, steps=20)
    delta = tiny_codec(4).delta(SECRET)
    for mode in MODES:
        with mark(kind, mode):
            difference = latents_of(kind, steps=20) - plain
        times = kind.pipe.scheduler.timesteps.double().numpy()
        weights = Injection(mode, start=0.9).weights(times / 1000)
        abar = np.interp(times, np.arange(1000), kind.pipe.scheduler.alphas_cumprod.numpy())
        expected = float((weights[:-1] / np.sqrt(abar)).sum() + weights[-1])
        measured = float((difference * delta).sum() / delta.square().sum())
        assert measured == pytest.approx(expected, rel=0.03), mode
    assert "step" not in vars(kind.pipe.scheduler)


def table() -> str:
    rows = [marked_how(name) for name in BUILDERS]
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")
