"""`watermark`: inside this context every image of a diffusers pipeline carries a secret.

The pipeline's class is exchanged for a subclass while the context is open and put back after it; weights and
attributes are never touched. During a call the pixel layer hooks `vae.decode`, and the generation layer adds its
shares through `callback_on_step_end`, or through the scheduler where a pipeline has no such callback. What
neither can reach is the moment before the first step, so the subclass also listens to `prepare_latents` and, since
every diffusers pipeline opens its progress bar right before its loop, to `progress_bar`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, cast

from torch import Tensor

from diffmark.keys.ring import as_ring
from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.injection import Injection
from diffmark.latent.spaces import vae_family
from diffmark.latent.vae import codec_for
from diffmark.mark.decoding import PixelLayer, check_decoding, hook_decoder
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.latents import check_strength
from diffmark.mark.readback import FIELDS, Verify, check_verify
from diffmark.mark.steps import WatermarkCallback, both, check_free, latent_size, without_noise
from diffmark.pixel.codec import MIN_SIDE, MarkWarning, PixelCodec
from diffmark.pixel.layout import PixelConfig
from diffmark.secret import SecretLike, as_secrets

_log = logging.getLogger("diffmark")
_MISSING: Any = object()


def watermark(
    pipe: Any,
    codec: Codec | SecretLike | None,
    secrets: SecretLike = _MISSING,
    strength: float = 1.0,
    injection: Injection | None = None,
    pixel: PixelCodec | bool = True,
    verify: Verify = "warn",
    rounds: int = 0,
) -> AbstractContextManager[Any]:
    """`watermark(pipe, secret)` or `watermark(pipe, codec, secret)`: marks in latents and pixels.

    Without a codec the one that ships for the pipeline's latent space is taken; where there is none, or with the
    codec None, the pixel layer marks alone, in pipelines of any latent space.
    `secrets` is one secret for all images of a call, or one an image (hex, int, bytes, bits; see as_secrets).
    `strength` scales delta; 0 gives images bit-identical to unmarked ones. `injection` defaults to the one the
    codec was trained with. `pixel` writes the pixel layer where latents are decoded: True with the operator's key
    (see `diffmark.keys.ring`), a PixelCodec with its own, False not at all. Each image's mark is read back once:
    a failure warns, with `verify="raise"` it raises, and None leaves it out. `rounds` of fitting the pixel layer
    to copies of its picture: 0 is fast, 3 is what `embed` takes (results/marking_cost.json).
    The pipeline is as it was when the context ends, also after an exception.
    """
    if secrets is _MISSING:
        codec, secrets = choose_codec(pipe), cast(SecretLike, codec)
    if codec is not None and not isinstance(codec, Codec):
        raise TypeError(f"codec: a Codec or None is expected, got {type(codec).__name__}")
    return _watermark(pipe, codec, secrets, strength, injection, pixel, verify, rounds)


def choose_codec(pipe: Any) -> Codec | None:
    """The codec that ships for a pipeline's latent space; None, and a line in the log, if there is none."""
    vae = getattr(pipe, "vae", None)
    name, family = codec_for(vae), vae_family(vae)
    if name is None:
        _say_none(type(pipe).__name__, family.name if family else None)
        return None
    codec = _bundled(name)
    if isinstance(codec, NoiseCodec) and (why := without_noise(pipe)):
        _say_unreached(type(pipe).__name__, why, name)
        return None
    return codec.use_key(as_ring().current)


@functools.cache
def _bundled(name: str) -> Codec:
    return Codec.from_pretrained(name)


@functools.cache  # once for each kind of pipeline
def _say_none(pipeline: str, space: str | None) -> None:
    where = f"latent space {space!r}" if space else "latent space"
    _log.warning("no codec ships for the %s of %s: the pixel layer marks alone", where, pipeline)


@functools.cache
def _say_unreached(pipeline: str, why: str, codec: str) -> None:
    _log.warning("%s %s, %r marks initial noise: the pixel layer marks alone", pipeline, why, codec)


@contextmanager
def _watermark(
    pipe: Any,
    codec: Codec | None,
    secrets: SecretLike,
    strength: float,
    injection: Injection | None,
    pixel: PixelCodec | bool,
    verify: Verify,
    rounds: int,
) -> Iterator[Any]:
    check_strength(strength)
    check_verify(verify)
    check_free(pipe)
    if codec is None:
        if pixel is False or injection is not None:
            raise ValueError(
                "without a codec the pixel layer is the only mark: leave out pixel and injection"
            )
        length = pixel.length if isinstance(pixel, PixelCodec) else PixelConfig().length
    else:
        length = codec.config.length
    bits = as_secrets(secrets, length)
    layer = PixelLayer.of(pixel, bits, verify, rounds) if strength else None
    if layer is not None:
        check_decoding(pipe, several=len(bits) > 1)
    callback = None
    if codec is not None:
        callback = WatermarkCallback(pipe, codec, bits, strength, injection, verify)
    plain = type(pipe)
    pipe.__class__ = _marking_class(plain, layer, callback)
    try:
        yield pipe
    finally:
        pipe.__class__ = plain


def _marking_class(plain: type, layer: PixelLayer | None, callback: WatermarkCallback | None) -> type:
    """A subclass of the pipeline's class whose calls are marked; its name stays."""
    signature = inspect.signature(plain.__call__)
    offers_callback = "callback_on_step_end" in signature.parameters
    secrets = layer.count if layer else len(callback.secrets) if callback else 1
    waiting: list[Tensor] = []  # latents between prepare_latents and the first step

    class Marking(plain):
        _diffmark_plain = plain

        @functools.wraps(plain.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(self, *args, **kwargs)
            asked = {**kwargs, **bound.arguments}
            _check_call(asked, layer, callback)
            with ExitStack() as stack:
                if callback is not None:
                    callback.reset()
                    stack.callback(waiting.clear)
                    if offers_callback:
                        _add_callback(bound.arguments, callback)
                    else:
                        stack.enter_context(callback.in_scheduler(self))
                if layer is not None:
                    layer.begin()
                    stack.enter_context(hook_decoder(self, layer))
                output = super().__call__(*bound.args[1:], **bound.kwargs)
            if callback is not None and not callback.finished:
                raise UnmarkableError(
                    "the pipeline stopped before the last step, so its images are not fully marked"
                )
            if layer is not None and _gives_pictures(asked):
                _check_pictures(layer, callback, output)
            return output

        if hasattr(plain, "prepare_latents"):

            def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
                output = super().prepare_latents(*args, **kwargs)
                latents, *rest = output if isinstance(output, tuple) else (output,)
                if not isinstance(latents, Tensor):
                    return output
                if secrets not in (1, len(latents)):
                    raise UnmarkableError(
                        f"{secrets} secrets for {len(latents)} images: give one for all, or one an image"
                    )
                if callback is None:
                    return output
                latents = latents.clone()  # latents given by the caller are the caller's
                named = inspect.signature(super().prepare_latents).bind(*args, **kwargs).arguments
                size = latent_size(self, latents, callback.codec.config.channels, named)
                callback.prepare(self, latents, size)
                waiting[:] = [latents]
                return (latents, *rest) if isinstance(output, tuple) else latents

        if hasattr(plain, "progress_bar"):

            def progress_bar(self, *args: Any, **kwargs: Any) -> Any:
                if callback is not None and waiting:
                    callback.begin(self, waiting.pop())
                return super().progress_bar(*args, **kwargs)

    Marking.__name__, Marking.__qualname__ = plain.__name__, plain.__qualname__
    Marking.__module__ = plain.__module__
    return Marking


def _add_callback(arguments: dict[str, Any], callback: WatermarkCallback) -> None:
    """The mark's callback beside the caller's own, in the arguments of a call."""
    theirs = arguments.get("callback_on_step_end")
    wanted = list(arguments.get("callback_on_step_end_tensor_inputs") or ["latents"])
    wanted = list(getattr(theirs, "tensor_inputs", wanted))
    arguments["callback_on_step_end"] = both(theirs, callback)
    arguments["callback_on_step_end_tensor_inputs"] = list(dict.fromkeys(wanted + callback.tensor_inputs))


def _check_call(
    arguments: dict[str, Any], layer: PixelLayer | None, callback: WatermarkCallback | None
) -> None:
    """Raise before any work if this call cannot be marked."""
    if arguments.get("padding_mask_crop") is not None:
        raise UnmarkableError("padding_mask_crop pastes unmarked pixels around the result: leave it out")
    if arguments.get("denoising_end") is not None:
        raise UnmarkableError(
            "a run that stops before the image is finished (denoising_end) cannot carry the mark; mark the next"
        )
    if layer is None:
        return
    sides = [arguments.get(name) for name in ("height", "width")]
    if any(isinstance(side, int) and side < MIN_SIDE for side in sides):
        raise UnmarkableError(f"pictures need at least {MIN_SIDE} pixels a side to be marked")
    if not _gives_pictures(arguments):
        if callback is None:
            raise UnmarkableError(
                "this call gives latents and no pictures, and without a codec nothing else is marked: decode "
                "the latents inside the context, or with watermark_vae"
            )
        warnings.warn(
            "this call gives latents: the generation layer marks alone, there are no pixels to mark; pixel=False "
            "says so",
            MarkWarning,
            stacklevel=4,
        )


def _gives_pictures(arguments: dict[str, Any]) -> bool:
    """Whether a call is asked for pictures: by `output_type`; modular pipelines by the names in `output`."""
    names = arguments.get("output")
    names = [names] if isinstance(names, str) else names
    if isinstance(names, (list, tuple)) and not set(names) & set(FIELDS):
        return False
    return arguments.get("output_type") != "latent"


def _check_pictures(layer: PixelLayer, callback: WatermarkCallback | None, output: Any) -> None:
    """After a call: pictures were marked, as far as there were any, and can be read."""
    if not layer.marked and callback is None:
        raise UnmarkableError("this call decoded no pictures: nothing was marked")
    layer.end(output)
