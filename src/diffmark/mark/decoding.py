"""The pixel layer in a diffusers pipeline: added to decoded pictures before they are rounded to 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from diffmark.pixel.codec import MIN_SIDE, PixelCodec
from diffmark.pixel.layout import PixelConfig
from diffmark.secret import Bits


class PixelLayer:
    """Marks every decoded picture of a pipeline: one secret for all, or one a picture."""

    def __init__(self, codec: PixelCodec, secrets: Bits) -> None:
        self.codec, self.secrets = codec, secrets
        self.marked = False  # whether the last call of the pipeline gave pictures

    @classmethod
    def of(cls, pixel: PixelCodec | bool, secrets: Bits) -> PixelLayer | None:
        """True: under the public key; False: none."""
        if isinstance(pixel, PixelCodec):
            if pixel.length != secrets.shape[1]:
                raise ValueError(
                    f"the pixel layer has secrets of {pixel.length} bits, the codec's have {secrets.shape[1]}"
                )
            return cls(pixel, secrets)
        return cls(PixelCodec(config=PixelConfig(length=secrets.shape[1])), secrets) if pixel else None

    @contextmanager
    def on(self, pipe: Any) -> Iterator[None]:
        """While this is open, pictures that the pipeline's image processor gets are marked first."""
        processor = pipe.image_processor
        plain = processor.postprocess
        self.marked = False

        def postprocess(image: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(self.mark(image), *args, **kwargs)

        processor.postprocess = postprocess
        try:
            yield
        finally:
            del processor.postprocess

    def mark(self, decoded: Any) -> Any:
        """A tensor of pictures (B, 3, H, W) in [-1, 1]; what is not pictures (latents) is given back as it is."""
        if decoded.ndim != 4 or decoded.shape[1] != 3 or min(decoded.shape[2:]) < MIN_SIDE:
            return decoded
        count = len(decoded)
        if len(self.secrets) not in (1, count):
            raise ValueError(
                f"{len(self.secrets)} secrets for {count} images: give one for all, or one an image"
            )
        secrets = np.broadcast_to(self.secrets, (count, self.secrets.shape[1]))
        residuals = [
            self.codec.residual((picture / 2 + 0.5).clamp(0, 1), secret).transpose(2, 0, 1) / 127.5
            for picture, secret in zip(decoded.float(), secrets, strict=True)
        ]
        self.marked = True
        added = decoded.new_tensor(np.stack(residuals), dtype=decoded.float().dtype)
        return (decoded.float() + added).to(decoded.dtype)
