"""DiffMark: multi-bit watermarks for generated images.

marked = diffmark.embed("photo.jpg", secret)       # any image: the pixel layer
detection = diffmark.detect(marked.image, secret)  # bits, p-value, verdict
with diffmark.watermark(pipe, codec, secret):      # a diffusers pipeline: both layers
    image = pipe(prompt).images[0]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

# Names are loaded on first use: `import diffmark` and `diffmark --help` do not wait for torch.
_HOME = {
    "Codec": "codec",
    "CodecConfig": "codec",
    "Detection": "decision",
    "Detector": "detection",
    "Injection": "injection",
    "OperatorKey": "pixel.keys",
    "PayloadScheme": "payload",
    "PixelCodec": "pixel.codec",
    "WatermarkCallback": "marking",
    "detect": "pixel.calls",
    "embed": "pixel.calls",
    "open_detector": "readers",
    "random_secrets": "secret",
    "watermark": "marking",
}
__all__ = list(_HOME)

if TYPE_CHECKING:
    from diffmark.codec import Codec, CodecConfig
    from diffmark.decision import Detection
    from diffmark.detection import Detector
    from diffmark.injection import Injection
    from diffmark.marking import WatermarkCallback, watermark
    from diffmark.payload import PayloadScheme
    from diffmark.pixel.calls import detect, embed
    from diffmark.pixel.codec import PixelCodec
    from diffmark.pixel.keys import OperatorKey
    from diffmark.readers import open_detector
    from diffmark.secret import random_secrets


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"diffmark.{_HOME[name]}"), name)
    raise AttributeError(f"module 'diffmark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
