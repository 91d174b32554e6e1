"""`diffmark export-onnx`: a codec's pixel decoder for onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_onnx(
    codec: Annotated[str, typer.Argument(help="A codec with a pixel decoder: name, folder, or hub id.")],
    out: Annotated[Path, typer.Argument(help="The file to write (.onnx).")],
) -> None:
    """Write a codec's pixel decoder as ONNX, to read secrets with onnxruntime and without torch.

    Input `pixels`: float32 in [-1, 1], RGB, half the codec's native size, (B, 3, H, W). Output `logits`,
    (B, L, 2): a bit is 1 where the second is larger.
    """
    from diffmark.fast import export_onnx as write
    from diffmark.fast import load_pixel_decoder

    typer.echo(write(load_pixel_decoder(codec), out))
