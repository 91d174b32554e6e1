"""Between (B, C, h, w) and the layouts that pipelines carry their latents in.

(B, C, h, w)            SD, SD3, Z-Image, Lumina 2, ...
(B, 4 C, h/2, w/2)      2 x 2 patches as channels (c, dy, dx): ERNIE-Image
(B, h w / 4, 4 C)       the same as tokens, row by row: FLUX.1, FLUX.2, Qwen-Image
(B, C, F, h, w)         videos: Wan, AnimateDiff; (B, F, C, h, w): Stable Video Diffusion
(B, F h w, C)           videos as tokens: LTX
"""

from __future__ import annotations

from torch import Tensor


class LayoutError(ValueError):
    """Latents in a layout that is not known here."""


def arrange(values: Tensor, like: Tensor) -> Tensor:
    """(B, C, h, w) in the layout of latents `like`; all frames of a video get the same."""
    _, channels, height, width = values.shape
    patched = like.shape[2 if like.ndim == 3 else 1] == 4 * channels
    if patched:
        values = _patched(values)
    if like.ndim == 3:
        values = values.flatten(2).transpose(1, 2)
        if like.shape[1] % values.shape[1] == 0:
            values = values.repeat(1, like.shape[1] // values.shape[1], 1)
    elif like.ndim == 5:
        axis = 2 if like.shape[1] == channels else 1
        frames = [-1] * 5
        frames[axis] = like.shape[axis]
        values = values.unsqueeze(axis).expand(frames)
    if values.shape[1:] != like.shape[1:]:
        raise LayoutError(
            f"latents have shape {tuple(like.shape)}, which {channels} channels of {height} x {width} do not fit"
        )
    return values


def restore(latents: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    """The inverse of `arrange`: latents as (B, C, h, w), of a video its first frame."""
    height, width = size
    if latents.ndim == 5:
        return latents[:, :, 0] if latents.shape[1] == channels else latents[:, 0]
    if latents.ndim == 3:
        patch = 2 if latents.shape[2] == 4 * channels else 1
        rows, columns = height // patch, width // patch
        latents = latents[:, : rows * columns].transpose(1, 2).unflatten(2, (rows, columns))
    return latents if latents.shape[1] == channels else _unpatched(latents)


def _patched(values: Tensor) -> Tensor:
    """(B, C, h, w) -> (B, 4 C, h/2, w/2)."""
    batch, channels, height, width = values.shape
    parts = values.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(batch, 4 * channels, height // 2, width // 2)


def _unpatched(values: Tensor) -> Tensor:
    """(B, 4 C, h/2, w/2) -> (B, C, h, w)."""
    batch, channels, height, width = values.shape
    parts = values.reshape(batch, channels // 4, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, channels // 4, 2 * height, 2 * width)
