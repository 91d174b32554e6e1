"""Marked images on request: one pipeline, one image at a time."""

from __future__ import annotations

import io
import secrets
import time
from concurrent.futures import TimeoutError
from dataclasses import dataclass
from typing import Any

from diffmark.latent.codec import Codec
from diffmark.latent.vae import fits
from diffmark.mark.context import watermark
from diffmark.mark.generation import ImageSpec, Sampling, generate
from diffmark.mark.loading import default_guidance, load_pipeline
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import Bits
from diffmark.server.models import GenerateRequest


@dataclass(frozen=True)
class Painting:
    """A marked image as PNG, with what made it."""

    png: bytes
    key: str
    seed: int


class Painter:
    """A pipeline that can carry the marks of these codecs; it raises here if it cannot."""

    def __init__(self, pipe: Any, codec: Codec | None, model: str, pixel: PixelCodec | None = None) -> None:
        self.pipe, self.codec, self.model, self.pixel = pipe, codec, model, pixel
        pipe.set_progress_bar_config(disable=True)
        with watermark(pipe, codec, 0):
            pass

    @classmethod
    def load(cls, model: str, codec: Codec | None, pixel: PixelCodec | None = None) -> Painter:
        """With a pixel codec, a model whose latents the other one is not for is marked in pixels alone."""
        pipe = load_pipeline(model)
        if codec and pixel and not fits(codec.config, pipe.vae):
            codec = None
        return cls(pipe, codec, model, pixel)

    def paint(self, request: GenerateRequest, key: str, secret: Bits, deadline: float) -> Painting:
        """The image of a request; TimeoutError at the first step after the deadline (monotonic seconds)."""
        seed = secrets.randbits(32) if request.seed is None else request.seed
        spec = ImageSpec(request.prompt, secret, seed, negative_prompt=request.negative_prompt)
        guidance = default_guidance(self.model) if request.guidance is None else request.guidance

        def check() -> None:
            if time.monotonic() > deadline:
                raise TimeoutError

        image = generate(self.pipe, self.codec, spec, Sampling(request.steps, guidance), check, self.pixel)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return Painting(buffer.getvalue(), key, seed)
