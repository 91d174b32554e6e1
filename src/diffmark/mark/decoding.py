"""The pixel layer where latents are decoded: a hook on `vae.decode`, the one call that all pipelines share.

What the hook gives back is marked and not yet rounded to 8 bits. It reaches pipelines without step callbacks,
modular pipelines and serving engines, and leaves weights and classes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffmark.keys.ring import as_ring
from diffmark.latent.spaces import has_frames
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.readback import Verify, check_verify, complain, pictures_of, read_pixels
from diffmark.parallel import on_all_cores
from diffmark.pixel.codec import MIN_SIDE, PixelCodec
from diffmark.pixel.layout import PixelConfig
from diffmark.secret import Bits, SecretLike, as_secrets

Secrets = SecretLike | Callable[[], SecretLike]


def watermark_vae(
    vae: Any, secrets: Secrets, pixel: PixelCodec | None = None, verify: Verify = "warn"
) -> DecodeHook:
    """From now on every picture that `vae.decode` gives carries a secret in its pixels.

    For serving engines and code that has no pipeline. `secrets` is one for all pictures, one a picture of each
    call, or a function that is asked at each call. The hook is taken off by `.remove()`, or at the end of a `with`.
    `verify` reads each picture back: "warn", "raise" or None.
    """
    check_decoder(vae, type(vae).__name__)
    check_verify(verify)
    layer = PixelLayer(pixel or PixelCodec(as_ring().current), secrets, verify)
    return DecodeHook(vae, "decode", layer, read_back=True)


def check_decoder(vae: Any, name: str) -> None:
    """Whether what it decodes are pictures that no hook is on yet."""
    if not callable(getattr(vae, "decode", None)):
        raise UnmarkableError(f"{name} has no decode: it is no autoencoder")
    config = getattr(vae, "config", None)
    channels, patch = getattr(config, "out_channels", 3), getattr(config, "patch_size", None)
    pixels = patch**2 if isinstance(patch, int) else 1  # Wan 2.2 counts the colours of a patch
    if channels not in (3, 3 * pixels) or getattr(config, "sampling_rate", None):
        raise UnmarkableError(f"what {name} decodes is not red, green and blue")
    if isinstance(getattr(vae.decode, "diffmark_hook", None), DecodeHook):
        raise UnmarkableError(f"this {name} is already inside a watermark context")


class PixelLayer:
    """Marks decoded pictures: one secret for all, or one a picture or video, in the order of decoding."""

    def __init__(self, codec: PixelCodec, secrets: Secrets, verify: Verify = "warn", rounds: int = 0) -> None:
        self.codec, self.verify, self.rounds = codec, verify, rounds
        self._given = secrets if callable(secrets) else as_secrets(secrets, codec.length)
        self._used: list[Bits] = []  # since `begin`

    @property
    def count(self) -> int:
        """Secrets that were given."""
        return 1 if callable(self._given) else len(self._given)

    @classmethod
    def of(
        cls, pixel: PixelCodec | bool, secrets: Bits, verify: Verify, rounds: int = 0
    ) -> PixelLayer | None:
        """True: under the operator's key; False: none."""
        if isinstance(pixel, PixelCodec):
            if pixel.length != secrets.shape[1]:
                raise ValueError(
                    f"the pixel layer has secrets of {pixel.length} bits, the codec's have {secrets.shape[1]}"
                )
            return cls(pixel, secrets, verify, rounds)
        config = PixelConfig(length=secrets.shape[1])
        return cls(PixelCodec(as_ring().current, config), secrets, verify, rounds) if pixel else None

    def begin(self) -> None:
        """Before a run."""
        self._used = []

    @property
    def marked(self) -> int:
        """Pictures or videos since `begin`."""
        return sum(map(len, self._used))

    def mark(self, decoded: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) or videos (B, 3, F, H, W) in [-1, 1], with the mark, not clamped."""
        if decoded.ndim not in (4, 5) or decoded.shape[1] != 3:
            raise UnmarkableError(f"what was decoded has shape {tuple(decoded.shape)}: these are no pictures")
        if min(decoded.shape[-2:]) < MIN_SIDE:
            height, width = decoded.shape[-2:]
            raise UnmarkableError(
                f"pictures of {width} x {height} pixels cannot be marked: {MIN_SIDE} a side at least"
            )
        if not decoded.isfinite().all():
            raise UnmarkableError(
                "the vae gave values that are not finite: it needs more than half precision"
            )
        secrets = self._secrets(len(decoded))
        self._used.append(secrets)
        if decoded.ndim == 4:
            return self._added(decoded, secrets)
        frames = decoded.transpose(1, 2)  # (B, F, 3, H, W)
        secrets = secrets.repeat(frames.shape[1], axis=0)
        return self._added(frames.flatten(0, 1), secrets).view_as(frames).transpose(1, 2)

    def read_back(self, pictures: list[Any]) -> None:
        """Warn or raise if a mark that was written since `begin` cannot be read from finished pictures."""
        if self.verify is None or not self.marked:
            return
        written = np.concatenate(self._used)
        if pictures and len(np.unique(written, axis=0)) == 1:  # videos may be decoded frame by frame
            written = np.repeat(written[:1], len(pictures), axis=0)
        if len(pictures) != len(written):
            found = (
                f"{len(written)} pictures were marked and {len(pictures)} found in the output: not read back"
            )
            complain(self.verify, found)
            return
        for problem in read_pixels(self.codec, pictures, written):
            complain(self.verify, f"{problem}; flat or tiny pictures cannot carry the whole mark")

    def end(self, output: Any) -> None:
        """After a run: is every secret used, and can the marks be read from its output?"""
        if self.marked and self.count not in (1, self.marked):
            raise UnmarkableError(
                f"{self.count} secrets for {self.marked} images: give one for all, or one an image"
            )
        if self.verify is not None and self.marked:
            self.read_back(pictures_of(output))

    def _secrets(self, count: int) -> Bits:
        """Of the next `count` pictures; some pipelines decode one picture after another."""
        given = as_secrets(self._given(), self.codec.length) if callable(self._given) else self._given
        if len(given) == 1:
            return np.repeat(given, count, axis=0)
        first = 0 if callable(self._given) or len(given) == count else self.marked
        if first + count > len(given):
            raise UnmarkableError(
                f"{len(given)} secrets for {first + count} images: give one for all, or one an image"
            )
        return given[first : first + count]

    @torch.no_grad()
    def _added(self, pictures: Tensor, secrets: Bits) -> Tensor:
        """(N, 3, H, W) with the residuals of secrets (N, L)."""
        exact = pictures.detach().float()
        shown = (exact / 2 + 0.5).clamp(0, 1).cpu()

        def fit(one: tuple[Tensor, Bits]) -> NDArray[np.float32]:
            residual = self.codec.residual(*one, rounds=self.rounds)
            return residual.transpose(2, 0, 1) / np.float32(127.5)

        residuals = on_all_cores(fit, list(zip(shown, secrets, strict=True)))
        return (exact + exact.new_tensor(np.stack(residuals))).to(pictures.dtype)


class DecodeHook:
    """Replaces one method of an object by one whose pictures are marked, until `remove`."""

    def __init__(self, owner: Any, name: str, layer: PixelLayer, read_back: bool = False) -> None:
        self.owner, self.name, self.layer = owner, name, layer
        self._read_back = read_back  # at once: every call is a run of its own
        self._plain = getattr(owner, name)
        self._own = vars(owner).get(name)  # of an object whose method was replaced by others before
        self._inside = False  # a decode that calls itself, tile by tile, is marked once
        hook = self

        def method(*args: Any, **kwargs: Any) -> Any:
            return hook._call(*args, **kwargs)

        method.diffmark_hook = self  # type: ignore[attr-defined]
        vars(owner)[name] = method

    def remove(self) -> None:
        """The object as it was."""
        if self._own is None:
            vars(self.owner).pop(self.name, None)
        else:
            vars(self.owner)[self.name] = self._own

    def __enter__(self) -> DecodeHook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return self._plain(*args, **kwargs)
        self._inside = True
        try:
            return self._given_back(args, kwargs)
        finally:
            self._inside = False

    def _given_back(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.name == "postprocess":  # of an image processor: it is given the pictures
            self.layer.begin()  # a safety checker has it make a copy first
            return self._plain(self._marked(args[0]), *args[1:], **kwargs)
        output = self._plain(*args, **kwargs)
        if isinstance(output, Tensor):
            return self._marked(output)
        if isinstance(output, tuple) and not hasattr(output, "sample"):
            return (self._marked(output[0]), *output[1:])
        output.sample = self._marked(output.sample)
        return output

    def _marked(self, decoded: Tensor) -> Tensor:
        if self._read_back:
            self.layer.begin()
        marked = self.layer.mark(decoded)
        if self._read_back:
            shown = (marked.float() / 2 + 0.5).clamp(0, 1)
            if shown.ndim == 5:
                shown = shown[:, :, shown.shape[2] // 2]
            self.layer.end(list(shown.cpu()))
        return marked


def hook_decoder(pipe: Any, layer: PixelLayer) -> DecodeHook:
    """A hook on whatever turns a pipeline's latents into pictures."""
    vae = getattr(pipe, "vae", None)
    if vae is not None:
        return DecodeHook(vae, "decode", layer)
    return DecodeHook(pipe.image_processor, "postprocess", layer)


def check_decoding(pipe: Any, several: bool) -> None:
    """Raise unless decoded pictures of this pipeline can be marked; `several`: with a secret each."""
    name = type(pipe).__name__
    vae = getattr(pipe, "vae", None)
    if vae is not None:
        check_decoder(vae, f"{name}'s vae")
        if several and hasattr(pipe, "video_processor") and not has_frames(vae):
            raise UnmarkableError(f"{name} decodes frames like pictures: give one secret for all of them")
    elif getattr(pipe, "image_processor", None) is None:
        raise UnmarkableError(
            f"{name} has no vae and no image_processor: its decoded pictures cannot be reached"
        )
