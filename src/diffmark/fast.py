"""Fast reading: a small network in the place of the autoencoder's encoder, on images at half the codec's size.

It gives what the codec's own decoder reads, latents as far as the mark needs them. Its
weights lie beside the codec as `pixel.safetensors`, with a digest of the decoder that they were distilled for; with
that decoder it can be exported to ONNX for onnxruntime.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diffmark.codec import Codec, CodecConfig, SecretDecoder
from diffmark.codec_files import PIXEL_FILE, CodecError, find_codec
from diffmark.provenance import weights_digest

SHRINK = 2  # an image is read at the codec's native size over this
WIDTH = 64  # channels between pixels and latents


class PixelEncoder(nn.Module):
    """Pixels in [-1, 1] at half the native size, (B, 3, H, W) -> latents (B, C, h, w)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.fold = config.pixels_per_latent // SHRINK  # pixels a latent at this size
        folded = 3 * self.fold**2
        self.layers = nn.Sequential(
            nn.Conv2d(folded, WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(WIDTH, config.channels, 3, padding=1),
        )
        self.straight = nn.Conv2d(folded, config.channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        folded = nn.functional.pixel_unshuffle(pixels, self.fold)
        return self.layers(folded) + self.straight(folded)


class PixelDecoder(nn.Module):
    """A pixel encoder and the codec's own decoder: pixels (B, 3, H, W) -> logits (B, L, 2)."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.encoder = PixelEncoder(codec.config)
        self.decoder = codec.decoder

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) that it reads."""
        height, width = self.decoder.config.image_size
        return height // SHRINK, width // SHRINK

    def forward(self, pixels: Tensor) -> Tensor:
        return self.decoder(self.encoder(pixels))


def save_pixel_decoder(decoder: PixelDecoder, folder: str | Path) -> Path:
    """Write its encoder beside a codec, in half precision."""
    from safetensors.torch import save_file

    file = Path(folder) / PIXEL_FILE
    state = {name: value.half().contiguous() for name, value in decoder.encoder.state_dict().items()}
    save_file(state, file, {"decoder": weights_digest(decoder.decoder, half=True)})
    return file


def belongs(file: Path, decoder: SecretDecoder) -> bool:
    """Whether the weights of a pixel decoder were distilled for this decoder of a codec."""
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return (opened.metadata() or {}).get("decoder") == weights_digest(decoder, half=True)


def load_pixel_decoder(source: str | Path) -> PixelDecoder:
    """The pixel decoder of a codec by name, folder or hub id, in float32."""
    from safetensors.torch import load_file

    folder = find_codec(source)
    file = folder / PIXEL_FILE
    if not file.is_file():
        raise CodecError(
            f"the codec {str(source)!r} has no pixel decoder ({PIXEL_FILE}): read it without --fast"
        )
    decoder = PixelDecoder(Codec.from_pretrained(folder))
    own, state = decoder.encoder.state_dict(), load_file(file)
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        raise CodecError(f"{file} does not fit the codec beside it")
    if not belongs(file, decoder.decoder):
        raise CodecError(f"{file} was distilled for another codec than the one beside it")
    decoder.encoder.load_state_dict({name: value.float() for name, value in state.items()})
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
    """An exported pixel decoder, run by onnxruntime."""

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
