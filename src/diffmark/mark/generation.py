"""Generating marked images into a folder: one PNG and one JSON line an image, nothing lost on a crash."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from diffmark import __version__
from diffmark.latent.codec import Codec
from diffmark.latent.injection import Injection
from diffmark.mark.context import watermark
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.readback import Verify
from diffmark.pixel.codec import MarkWarning, PixelCodec
from diffmark.records import RECORDS, append_record
from diffmark.secret import Bits, to_hex

NO_MARK = "a strength of 0 writes no mark: the picture is not marked"
PIXEL_ALONE = "a strength of 0 leaves the generation layer out: the pixel layer marks alone"


@dataclass(frozen=True)
class ImageSpec:
    """One image to make. An account is recorded with payload secrets."""

    prompt: str
    secret: Bits
    seed: int
    account: int | None = None
    negative_prompt: str | None = None


@dataclass(frozen=True)
class Sampling:
    """How the pipeline is run; guidance is diffusers' guidance_scale."""

    steps: int = 50
    guidance: float = 7.5
    strength: float = 1.0
    injection: Injection | None = None  # None: the codec's own


def generate(
    pipe: Any,
    codec: Codec | None,
    spec: ImageSpec,
    sampling: Sampling | None = None,
    on_step: Callable[[], None] | None = None,
    pixel: PixelCodec | None = None,
    verify: Verify = "warn",
) -> Any:
    """The PIL image of one spec, marked in its latents, in its pixels, or both: by the codecs that are given.

    `on_step` is called after each step; what it raises ends the work.
    """
    if codec is None and pixel is None:
        raise ValueError("an image is marked by a codec, by a pixel codec or by both: give one")
    sampling = sampling or Sampling()
    strength = sampling.strength
    if pixel is not None and strength == 0:  # leaves out the codec's mark alone
        codec, strength = None, 1.0
    options: dict[str, Any] = {}
    if spec.negative_prompt:
        options["negative_prompt"] = spec.negative_prompt
    if on_step:
        options["callback_on_step_end"] = lambda pipe, step, time, values: on_step() or values
    generator = torch.Generator("cpu").manual_seed(spec.seed)  # the same image on every device
    injection = sampling.injection if codec is not None else None
    with watermark(pipe, codec, spec.secret, strength, injection, pixel or False, verify):
        output = pipe(
            spec.prompt,
            num_inference_steps=sampling.steps,
            guidance_scale=sampling.guidance,
            generator=generator,
            **options,
        )
    if any(getattr(output, "nsfw_content_detected", None) or ()):
        raise UnmarkableError(
            f"the safety checker blacked out the image of {spec.prompt!r}: it carries no mark"
        )
    return output.images[0]


def generate_into(
    folder: str | Path,
    pipe: Any,
    codec: Codec | None,
    specs: Iterable[ImageSpec],
    sampling: Sampling | None = None,
    provenance: dict[str, Any] | None = None,
    finish: Callable[[Path, Bits, str], dict[str, Any]] | None = None,
    pixel: PixelCodec | None = None,
) -> Iterator[dict[str, Any]]:
    """Make each spec's image in `folder` and yield its record, which is also a line of images.jsonl.

    The image is complete before its line is written, and the line is on disk before the image takes its place.
    Images that are there already are kept: new ones take the next numbers. `finish` gets each image's file, secret
    and media type before the image takes its place, may sign the file, and returns what to add to the record. What
    cannot be read back is a note of the record.
    """
    folder, sampling = Path(folder), sampling or Sampling()
    folder.mkdir(parents=True, exist_ok=True)
    latent: dict[str, Any] = {}
    if codec is not None:
        latent["strength"] = sampling.strength
        latent["injection"] = asdict(sampling.injection or codec.injection)
    first = 1 + max((int(path.stem) for path in folder.glob("*.png") if path.stem.isdigit()), default=-1)
    for number, spec in enumerate(specs, start=first):
        with _noting() as notes:
            image = generate(pipe, codec, spec, sampling, pixel=pixel)
        if codec is not None and sampling.strength == 0:
            notes.append(NO_MARK if pixel is None else PIXEL_ALONE)
        path = folder / f"{number:05d}.png"
        partial = path.with_suffix(".part")
        image.save(partial, "PNG")
        added = finish(partial, spec.secret, "image/png") if finish else {}
        record = {
            "file": path.name,
            "prompt": spec.prompt,
            "secret": to_hex(spec.secret),
            "account": spec.account,
            "seed": spec.seed,
            "steps": sampling.steps,
            "guidance": sampling.guidance,
            **latent,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "diffmark": __version__,
            **(provenance or {}),
            **added,
            "notes": notes,
        }
        append_record(folder / RECORDS, record)
        os.replace(partial, path)
        yield record


@contextmanager
def _noting() -> Iterator[list[str]]:
    """What is wrong with marks, as notes instead of warnings; other warnings pass."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MarkWarning)
        yield notes
    for warning in caught:
        if issubclass(warning.category, MarkWarning):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
