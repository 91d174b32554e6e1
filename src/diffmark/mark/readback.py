"""Reading a mark back once, right after it was written: nothing is passed off as marked that cannot be read."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.mark.errors import UnmarkableError
from diffmark.pixel.codec import MarkWarning, PixelCodec
from diffmark.secret import Bits
from diffmark.statistics import match_threshold

FPR = 1e-6  # at which the known secret has to be read
LUMA_FPR = 1e-10  # at which the luma bands alone are enough, so that the reader itself surely reads it
Verify = Literal["warn", "raise"] | None

FIELDS = ("images", "frames", "videos", "image", "video", "sample")  # of outputs and of a modular state


def check_verify(verify: Verify) -> None:
    """Whether this is a way to verify."""
    if verify not in ("warn", "raise", None):
        raise ValueError(f"verify is 'warn', 'raise' or None, got {verify!r}")


def complain(verify: Verify, message: str) -> None:
    """Warn or raise, as was asked for."""
    if verify == "raise":
        raise UnmarkableError(message)
    if verify == "warn":
        warnings.warn(message, MarkWarning, stacklevel=4)


def needed(length: int, fpr: float = FPR) -> int:
    """Bits of a secret that have to match; all of one that is too short for the rate."""
    return match_threshold(length, max(fpr, 2.0**-length))


def shortfall(name: str, margins: NDArray[np.floating[Any]], secrets: Bits, fpr: float = FPR) -> list[str]:
    """What is wrong with the readings (B, L) of secrets (B, L): a phrase for each that is not read."""
    threshold = needed(secrets.shape[1], fpr)
    matches = ((margins > 0) == (secrets > 0)).sum(axis=1)
    return [
        f"{name} of image {index}: {count} of {secrets.shape[1]} bits are read back, {threshold} are needed"
        for index, count in enumerate(matches.tolist())
        if count < threshold
    ]


def read_pixels(codec: PixelCodec, pictures: list[Any], secrets: Bits) -> list[str]:
    """What is wrong with the pixel layer of pictures."""
    pairs = zip(pictures, secrets, strict=True)
    margins = [_margins(codec, picture, secret) for picture, secret in pairs]
    return shortfall("the pixel layer", np.stack(margins), secrets) if margins else []


def _margins(codec: PixelCodec, picture: Any, secret: Bits) -> NDArray[np.float64]:
    """Of luma alone where that is enough, else of a plain read; a cropped or resized picture is searched."""
    found = codec.read_luma(picture).margins
    if shortfall("", found[None], secret[None], LUMA_FPR):
        found = codec.read(picture, search=False).margins
        if shortfall("", found[None], secret[None]):
            found = codec.read(picture).margins
    return found


def pictures_of(output: Any) -> list[Any]:
    """The pictures in a pipeline's output, of each video the frame in the middle; empty if none are found."""
    values = getattr(output, "values", None)
    if isinstance(values, dict):  # the state of a modular pipeline
        output = values
    for name in FIELDS:
        found = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if found is not None:
            output = found
            break
    else:
        if isinstance(output, tuple) and output:
            output = output[0]
    if isinstance(output, Image.Image):
        return [output]
    if hasattr(output, "ndim"):
        output = list(_array(output)) if output.ndim in (4, 5) else []
    if not isinstance(output, list):
        return []
    return [
        _picture(part) for part in output if isinstance(part, (list, Image.Image)) or hasattr(part, "ndim")
    ]


def _picture(part: Any) -> Any:
    """A picture, or the middle frame of a video."""
    if isinstance(part, list) or getattr(part, "ndim", 3) == 4:
        part = part[len(part) // 2]
    return _array(part)


def _array(value: Any) -> Any:
    """Tensors in float32 on the CPU; everything else as it is."""
    return value.detach().float().cpu() if hasattr(value, "detach") else value
