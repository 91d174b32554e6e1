"""Whatever a user calls an image -> upright 8-bit sRGB, with notes on what had to be done to it."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms, ImageFile, ImageOps, UnidentifiedImageError

MAX_PIXELS = 100_000_000  # decompression-bomb limit

ImageLike = Any  # path, bytes, PIL image, numpy array (H, W[, C]), torch tensor (C, H, W)

# Pillow can open more, PostScript through Ghostscript among it: not for files from strangers.
FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "AVIF", "HEIF", "TIFF", "BMP", "GIF", "JPEG2000", "PPM", "ICO")
EXTENSIONS = {
    ".png",
    ".jpg",
    ".jpeg",
    ".webp",
    ".avif",
    ".heic",
    ".heif",
    ".tif",
    ".tiff",
    ".bmp",
    ".gif",
    ".jp2",
}  # what counts as an image in a folder
UNUSED_PROFILE = "its colour profile could not be used and was ignored"

try:
    import pillow_heif

    pillow_heif.register_heif_opener()
except ImportError:  # the `heif` extra; HEIC then gets the error for what is not an image
    pass


class ImageError(ValueError):
    """What was given cannot be read as an image; the message names it and says why."""


@dataclass(frozen=True)
class Picture:
    """An upright RGB image, where it came from and what was done to it."""

    image: Image.Image
    source: str
    notes: tuple[str, ...] = field(default=())
    resized_from: tuple[int, int] | None = None  # (width, height), if it was resized

    @property
    def aspect(self) -> float:
        """Width over height, before it was resized."""
        width, height = self.resized_from or self.image.size
        return width / height

    def resized(self, size: tuple[int, int]) -> Picture:
        """Resampled to (height, width), whatever the aspect was."""
        height, width = size
        if self.image.size == (width, height):
            return self
        image = self.image.resize((width, height), Image.Resampling.LANCZOS)
        return replace(self, image=image, resized_from=self.resized_from or self.image.size)

    def pixels(self) -> np.ndarray:
        """float32 in [-1, 1], shape (3, height, width)."""
        return np.asarray(self.image, np.float32).transpose(2, 0, 1) / 127.5 - 1.0


def read_image(value: ImageLike, max_pixels: int = MAX_PIXELS) -> Picture:
    """Read a path, bytes, PIL image, numpy array (H, W[, C]) or torch tensor (C, H, W).

    Arrays are uint8, uint16, or floats in [0, 1].
    """
    if isinstance(value, Picture):
        return value
    if isinstance(value, (str, Path)):
        path = Path(value)
        if not path.is_file():
            raise ImageError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}")
        return _read_file(path, str(path), max_pixels)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _read_file(io.BytesIO(bytes(value)), "bytes", max_pixels)
    if isinstance(value, Image.Image):
        source = value.__dict__.get("filename") or "image"
        try:
            return _normalise(value, source, max_pixels)
        except OSError as error:  # opened lazily, decoded here
            raise ImageError(f"{source}: damaged or truncated ({error})") from error
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        array = value.detach().cpu()
        if array.ndim != 3 or array.shape[0] not in (1, 3, 4):
            raise ImageError(
                f"a tensor image has shape (C, H, W) with 1, 3 or 4 channels, got {tuple(array.shape)}"
            )
        array = array.float() if array.is_floating_point() else array
        return _from_array(array.permute(1, 2, 0).numpy(), "tensor", max_pixels)
    if isinstance(value, np.ndarray):
        return _from_array(value, "array", max_pixels)
    raise ImageError(f"cannot read an image from {type(value).__name__}")


def _read_file(file: Any, source: str, max_pixels: int) -> Picture:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns about metadata
            with open_image(file) as image:
                return _normalise(image, source, max_pixels)
    except (ImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{source}: not an image, or of a format that is not supported") from None
    except Image.DecompressionBombError:
        limit = min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))
        raise ImageError(f"{source}: more than the limit of {limit:,} pixels") from None
    except Exception as error:  # Pillow's decoders raise a dozen kinds on damaged files
        raise ImageError(f"{source}: damaged or truncated ({error})") from error


def open_image(file: Any) -> ImageFile.ImageFile:
    """PIL's image of a path or stream, of our formats only; its pixels are not loaded yet."""
    Image.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit's job
        return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def _from_array(array: np.ndarray, source: str, max_pixels: int) -> Picture:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise ImageError(f"an {source} image has shape (H, W), (H, W, 3) or (H, W, 4), got {array.shape}")
    if array.dtype == np.uint16:
        array = _to_bytes(array / 65535)
    elif np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < -1e-3 or array.max() > 1 + 1e-3:
            raise ImageError(f"a float {source} image lies in [0, 1]")
        array = _to_bytes(array)
    elif array.dtype != np.uint8:
        raise ImageError(f"an {source} image is uint8, uint16 or float, got {array.dtype}")
    image = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
    return _normalise(image, source, max_pixels)


def _normalise(image: Image.Image, source: str, max_pixels: int) -> Picture:
    """First frame, upright, sRGB, no alpha, 8 bits."""
    if image.width * image.height > max_pixels:
        raise ImageError(
            f"{source}: {image.width}x{image.height} is more than the limit of {max_pixels:,} pixels"
        )
    notes = []
    frames = getattr(image, "n_frames", 1)
    if frames > 1:
        notes.append(f"animated: only the first of {frames} frames was read")
        image.seek(0)
    image.load()
    profile = image.info.get("icc_profile")
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        notes.append("more than 8 bits a channel were rounded to 8")
        image = _reduce_depth(image)
    if profile:
        image = _to_srgb(image, profile, notes)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = _flatten(image.convert("RGBA"), notes)
    return Picture(image.convert("RGB"), source, tuple(notes))


def _reduce_depth(image: Image.Image) -> Image.Image:
    array = np.asarray(image, np.float64)
    top = 1.0 if image.mode == "F" and array.max() <= 1 else (65535.0 if array.max() > 255 else 255.0)
    if image.mode.startswith("I;16"):
        top = 65535.0
    return Image.fromarray(_to_bytes(array / top))


def _to_srgb(image: Image.Image, profile: bytes, notes: list[str]) -> Image.Image:
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    alpha = image.getchannel("A") if image.mode in ("RGBA", "LA") else None
    base = image.convert(image.mode[:-1]) if alpha is not None else image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(base, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        notes.append(UNUSED_PROFILE)
        return image
    assert converted is not None  # profileToProfile returns None only when working in place
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _flatten(image: Image.Image, notes: list[str]) -> Image.Image:
    if image.getchannel("A").getextrema()[0] == 255:  # fully opaque
        return image.convert("RGB")
    notes.append("transparent parts were laid on white")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)


def _to_bytes(array: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(array, 0, 1) * 255).astype(np.uint8)
