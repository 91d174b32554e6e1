"""What a user could install instead: invisible-watermark and blind-watermark, for finished images.

Both are optional packages (extra `eval`). Defaults are the packages' own, 32 bits as in Stable Diffusion's scripts.
Pictures that are too small for invisible-watermark to read are enlarged first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.baselines.base import Method
from diffmark.secret import Bits

MIN_PIXELS = 256 * 256  # pixels that invisible-watermark takes


class InvisibleWatermark(Method):
    """dwtDct, dwtDctSvd or rivaGan of the package invisible-watermark."""

    bits = 32

    def __init__(self, algorithm: str = "dwtDctSvd") -> None:
        from imwatermark import WatermarkDecoder, WatermarkEncoder

        if algorithm not in ("dwtDct", "dwtDctSvd", "rivaGan"):
            raise ValueError(f"invisible-watermark has dwtDct, dwtDctSvd and rivaGan, not {algorithm!r}")
        self.name = algorithm
        self._encoder, self._decoder = WatermarkEncoder(), WatermarkDecoder("bits", self.bits)
        if algorithm == "rivaGan":
            WatermarkEncoder.loadModel()
            WatermarkDecoder.loadModel()

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        self._encoder.set_watermark("bits", [int(bit) for bit in secret])
        return Image.fromarray(self._encoder.encode(_bgr(image), self.name)[..., ::-1].copy())

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        read = [
            np.asarray(self._decoder.decode(_bgr(_large_enough(image)), self.name), dtype=bool)
            for image in images
        ]
        return np.where(np.stack(read), 1.0, -1.0)


class BlindWatermark(Method):
    """DWT-DCT-SVD of the package blind-watermark, with its default passwords."""

    name, bits = "blindWatermark", 32

    def __init__(self) -> None:
        self._core()  # says at once that the package is missing

    def embed(self, image: Image.Image, secret: Bits) -> Image.Image:
        core = self._core()
        core.read_img_arr(_bgr(image))
        core.read_wm(np.asarray(secret, dtype=bool))
        marked = np.clip(core.embed(), 0, 255).round().astype(np.uint8)
        return Image.fromarray(marked[..., ::-1].copy())

    def decode(self, images: Sequence[Image.Image]) -> NDArray[np.float64]:
        read = [self._core().extract_with_kmeans(_bgr(image), self.bits) for image in images]
        return np.where(np.stack(read).astype(float) > 0.5, 1.0, -1.0)

    @staticmethod
    def _core() -> Any:
        # The package sets how processes start as it is imported, which a program may do only once.
        with mock.patch("multiprocessing.set_start_method"):
            from blind_watermark.bwm_core import WaterMarkCore

        return WaterMarkCore(password_img=1)


def _large_enough(image: Image.Image) -> Image.Image:
    """At least as many pixels as invisible-watermark reads."""
    factor = math.sqrt(MIN_PIXELS / (image.width * image.height))
    size = (math.ceil(factor * image.width), math.ceil(factor * image.height))
    return image if factor <= 1 else image.resize(size, Image.Resampling.BICUBIC)


def _bgr(image: Image.Image) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(image.convert("RGB"))[..., ::-1])
