"""DiffMark: multi-bit watermarks for frozen latent diffusion models.

with diffmark.watermark(pipe, codec, secret):      # any diffusers pipeline of the codec's family
    image = pipe(prompt).images[0]
detection = detector.detect(image, secret)         # bits, p-value, verdict
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Names are loaded on first use: `import diffmark` and `diffmark --help` do not wait for torch.
_HOME = {
    "Codec": "codec",
    "CodecConfig": "codec",
    "Detection": "detection",
    "Detector": "detection",
    "Injection": "injection",
    "PayloadScheme": "payload",
    "WatermarkCallback": "marking",
    "random_secrets": "secret",
    "watermark": "marking",
}
__all__ = list(_HOME)

if TYPE_CHECKING:
    from diffmark.codec import Codec, CodecConfig
    from diffmark.detection import Detection, Detector
    from diffmark.injection import Injection
    from diffmark.marking import WatermarkCallback, watermark
    from diffmark.payload import PayloadScheme
    from diffmark.secret import random_secrets


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"diffmark.{_HOME[name]}"), name)
    raise AttributeError(f"module 'diffmark' has no attribute {name!r}")
