"""Fast reading: a pixel decoder, from an image at half the codec's size to logits, without any autoencoder.

It is the codec's decoder on pixels folded to the grid of the latents, trained on marked pictures. It lies beside
the codec as `pixel.safetensors`, and can be exported to ONNX for onnxruntime.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffmark.codec import CodecConfig, CodecError, SecretDecoder, find_codec

WEIGHTS_FILE = "pixel.safetensors"
SHRINK = 2  # an image is read at the codec's native size over this


class PixelDecoder(nn.Module):
    """Pixels in [-1, 1] at half the codec's native size, (B, 3, H, W) -> logits (B, L, 2)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.fold = config.pixels_per_latent // SHRINK  # pixels a latent at this size
        self.config = config
        self.decoder = SecretDecoder(replace(config, channels=3 * self.fold**2))

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that it reads."""
        height, width = self.config.image_size
        return height // SHRINK, width // SHRINK

    def forward(self, pixels: Tensor) -> Tensor:
        return self.decoder(nn.functional.pixel_unshuffle(pixels, self.fold))


def save_pixel_decoder(decoder: PixelDecoder, folder: str | Path) -> Path:
    """Write it beside a codec, in half precision."""
    from safetensors.torch import save_file

    file = Path(folder) / WEIGHTS_FILE
    state = decoder.state_dict().items()
    save_file({name: (v.half() if v.is_floating_point() else v).contiguous() for name, v in state}, file)
    return file


def load_pixel_decoder(codec: str | Path) -> PixelDecoder:
    """The pixel decoder of a codec by name, folder or hub id, in float32."""
    from safetensors.torch import load_file

    folder = find_codec(codec)
    if not (folder / WEIGHTS_FILE).is_file():
        raise CodecError(
            f"the codec {str(codec)!r} has no pixel decoder ({WEIGHTS_FILE}): read it without --fast"
        )
    document = json.loads((folder / "config.json").read_text())
    decoder = PixelDecoder(CodecConfig.from_dict(document["config"]))
    own = decoder.state_dict()
    state = load_file(folder / WEIGHTS_FILE)
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        raise CodecError(f"{folder / WEIGHTS_FILE} does not fit the codec beside it")
    decoder.load_state_dict({name: value.to(own[name].dtype) for name, value in state.items()})
    return decoder.eval()


def export_onnx(decoder: PixelDecoder, file: str | Path) -> Path:
    """Write the decoder as ONNX: input `pixels` (B, 3, H, W) in [-1, 1], output `logits` (B, L, 2), any B."""
    if importlib.util.find_spec("onnx") is None:
        raise ImportError("exporting to ONNX needs onnx: pip install 'diffmark[eval]'")
    file = Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(1, 3, *decoder.image_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces its newer exporter, which needs a further package
        torch.onnx.export(
            decoder.eval(),
            (example,),
            str(file),
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}},
            dynamo=False,
        )
    return file


class OnnxPixelDecoder:
    """An exported pixel decoder, run by onnxruntime; no torch is needed for it."""

    def __init__(self, file: str | Path) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError("reading with ONNX needs onnxruntime: pip install 'diffmark[eval]'") from error
        self._session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        _, _, height, width = self._session.get_inputs()[0].shape
        self.image_size = (int(height), int(width))

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels in [-1, 1], float32 (B, 3, H, W) -> logits (B, L, 2)."""
        return np.asarray(self._session.run(None, {"pixels": np.ascontiguousarray(pixels, np.float32)})[0])
