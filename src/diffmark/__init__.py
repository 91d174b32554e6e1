"""DiffMark: multi-bit watermarks for generated images.

marked = diffmark.embed("photo.jpg", secret)       # any image: the pixel layer
detection = diffmark.detect(marked.image, secret)  # bits, p-value, verdict
with diffmark.watermark(pipe, secret):             # a diffusers pipeline, both layers where a codec ships
    image = pipe(prompt).images[0]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

# Names are loaded on first use: `import diffmark` and `diffmark --help` do not wait for torch.
_HOME = {
    "Codec": "latent.codec",
    "CodecConfig": "latent.config",
    "Detection": "detection.decision",
    "Detector": "detection.latent",
    "Injection": "latent.injection",
    "OperatorKey": "pixel.keys",
    "PayloadScheme": "payload.scheme",
    "PixelCodec": "pixel.codec",
    "Registry": "registry.registry",
    "WatermarkCallback": "mark.steps",
    "detect": "api",
    "embed": "api",
    "open_detector": "detection.joint",
    "random_secrets": "secret",
    "watermark": "mark.context",
    "watermark_vae": "mark.decoding",
}
__all__ = list(_HOME)

if TYPE_CHECKING:
    from diffmark.api import detect, embed
    from diffmark.detection.decision import Detection
    from diffmark.detection.joint import open_detector
    from diffmark.detection.latent import Detector
    from diffmark.latent.codec import Codec
    from diffmark.latent.config import CodecConfig
    from diffmark.latent.injection import Injection
    from diffmark.mark.context import watermark
    from diffmark.mark.decoding import watermark_vae
    from diffmark.mark.steps import WatermarkCallback
    from diffmark.payload.scheme import PayloadScheme
    from diffmark.pixel.codec import PixelCodec
    from diffmark.pixel.keys import OperatorKey
    from diffmark.registry.registry import Registry
    from diffmark.secret import random_secrets


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"diffmark.{_HOME[name]}"), name)
    raise AttributeError(f"module 'diffmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
