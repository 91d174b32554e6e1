"""Injection into diffusers: an unmodified pipeline adds each step's share of delta to its latents.

`callback_on_step_end` reaches the latents after every step. What it cannot reach is the moment before the first
step, so the context manager also listens to the pipeline's `prepare_latents` and, since every diffusers pipeline
opens its progress bar right before its loop, to `progress_bar`. The pipeline's class is exchanged for a subclass
while the context is open and put back after it; weights, scheduler and attributes are never touched.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any

import numpy as np
import torch
from diffusers import DiffusionPipeline, DPMSolverMultistepScheduler, UniPCMultistepScheduler
from diffusers.callbacks import PipelineCallback
from torch import Tensor

from diffmark.latent.codec import Codec
from diffmark.latent.injection import Injection
from diffmark.latent.vae import check_family
from diffmark.mark.decoding import PixelLayer
from diffmark.pixel.codec import MIN_SIDE, PixelCodec
from diffmark.pixel.layout import PixelConfig
from diffmark.secret import SecretLike, as_secrets

# Schedulers that tests hold to the dose. Others may rebuild a sample from before the share and lose it.
SCHEDULERS = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)


class UnmarkableError(ValueError):
    """The pipeline, or this call of it, cannot carry the mark. Raised instead of giving an unmarked image."""


@contextmanager
def watermark(
    pipe: DiffusionPipeline,
    codec: Codec | None,
    secrets: SecretLike,
    strength: float = 1.0,
    injection: Injection | None = None,
    pixel: PixelCodec | bool = True,
) -> Iterator[DiffusionPipeline]:
    """Inside this context every image of `pipe` carries a secret: in its latents by `codec`, and in its pixels.

    Without a codec (None) the pixel layer marks alone, in pipelines of any latent space.
    `secrets` is one secret for all images of a call, or one an image (hex, int, bytes, bits; see as_secrets).
    `strength` scales delta; 0 gives images bit-identical to unmarked ones. `injection` defaults to the one the
    codec was trained with. `pixel` writes the pixel layer into the decoded pictures too: True with the public key,
    a PixelCodec with its own, False not at all; latents that are not decoded (output_type="latent") cannot have it.
    The pipeline is as it was when the context ends, also after an exception.
    """
    _check_strength(strength)
    if codec is None:
        _check_pixels(pipe, pixel, injection)
        length = pixel.length if isinstance(pixel, PixelCodec) else PixelConfig().length
    else:
        length = codec.config.length
    bits = as_secrets(secrets, length)
    plain, layer = type(pipe), PixelLayer.of(pixel, bits) if strength else None
    marking = _marking_class(plain, layer, alone=codec is None)
    if codec is not None:
        marking = _injecting_class(marking, WatermarkCallback(pipe, codec, bits, strength, injection))
    pipe.__class__ = marking
    try:
        yield pipe
    finally:
        pipe.__class__ = plain


class WatermarkCallback(PipelineCallback):
    """Adds the next step's share of delta at the end of each step; composes with other diffusers callbacks.

    On its own it cannot reach the latents before the first step, so it serves injections whose first share is
    zero (final, and late with enough steps) and raises for the others: use `watermark`, which can.
    """

    def __init__(
        self,
        pipe: DiffusionPipeline,
        codec: Codec,
        secrets: SecretLike,
        strength: float = 1.0,
        injection: Injection | None = None,
    ) -> None:
        super().__init__()
        self.injection = injection or codec.config.injection
        _check_pipeline(pipe, codec, self.injection)
        _check_strength(strength)
        self.codec = codec
        self.secrets = as_secrets(secrets, codec.config.length)
        self.strength = strength
        offered = type(pipe)._callback_tensor_inputs
        # An LCM's picture is `denoised`; where an inpainting pipeline pastes the original back, `mask` tells.
        self._tensor_inputs = ["latents"] + [name for name in ("denoised", "mask") if name in offered]
        self._delta: Tensor | None = None  # in the latents' own layout
        self._timesteps, self._weights = np.zeros(0), np.zeros(1)
        self._done = 0  # steps whose share has been added
        self._owed: Any = 0.0  # what rounding to the latents' dtype has left out so far

    @property
    def tensor_inputs(self) -> list[str]:
        return self._tensor_inputs

    @property
    def finished(self) -> bool:
        """Whether the whole dose of the last run has been delivered."""
        return self._done == len(self._weights)

    def prepare(self, pipe: Any, latents: Tensor, size: tuple[int, int]) -> None:
        """Before a run: delta for latents of this shape; `size` is the latents' (h, w) before any packing."""
        self._delta = None
        batch = latents.shape[0]
        if len(self.secrets) not in (1, batch):
            raise UnmarkableError(
                f"{len(self.secrets)} secrets for {batch} images: give one for all, or one an image"
            )
        delta = self.codec.delta(self.secrets, size).expand(batch, -1, -1, -1)
        if latents.ndim == 3:  # FLUX packs 2x2 latents into one token
            delta = pipe._pack_latents(delta, *delta.shape)
        if delta.shape != latents.shape:
            raise UnmarkableError(
                f"latents have shape {tuple(latents.shape)}, the codec's delta {tuple(delta.shape)}"
            )
        self._delta = delta.float().to(latents.device) * self.strength
        self._owed = torch.zeros_like(self._delta)
        self._done = 0

    def begin(self, pipe: Any, latents: Tensor) -> None:
        """Right before the first step: fix the shares and add the first one to `latents`, in place."""
        self._timesteps = pipe.scheduler.timesteps[-pipe.num_timesteps :].cpu().double().numpy()
        self._weights = self.injection.weights(self._timesteps / pipe.scheduler.config.num_train_timesteps)
        share = self._share(pipe, 0)
        if share is not None:
            latents.copy_(self._add(latents, share))
        self._done = 1

    def callback_fn(
        self, pipeline: Any, step_index: int, timesteps: Any, callback_kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        missing = [name for name in self.tensor_inputs if name not in callback_kwargs]
        if missing:
            raise UnmarkableError(
                f"{missing[0]!r} was not given: the callback needs "
                f"callback_on_step_end_tensor_inputs={self.tensor_inputs}"
            )
        latents = callback_kwargs["latents"]
        if step_index == 0 and not (self._delta is not None and self._done == 1):
            self._begin_late(pipeline, latents)
        if float(timesteps) != self._timesteps[step_index]:
            raise UnmarkableError(
                f"step {step_index} is at time {float(timesteps):g}, expected {self._timesteps[step_index]:g}: a "
                "run that stops before the image is finished (denoising_end) cannot carry the mark; mark the next"
            )
        last = step_index + 2 == len(self._weights)
        share = self._share(pipeline, step_index + 1)
        if last and self._pastes_original(pipeline):
            share = self._restore(latents, callback_kwargs["mask"], share)
        if share is not None:
            callback_kwargs["latents"] = self._add(latents, share)
            if not last:
                _shift_history(pipeline.scheduler, share)
            elif "denoised" in self.tensor_inputs:
                callback_kwargs["denoised"] = callback_kwargs["denoised"] + share.to(latents.dtype)
        self._done = step_index + 2
        if last:
            self._delta = None
        return callback_kwargs

    def _begin_late(self, pipe: Any, latents: Tensor) -> None:
        """The callback runs on its own: the first step is over, which is fine if its share was zero."""
        if latents.ndim != 4:
            raise UnmarkableError(
                "packed latents need diffmark.watermark(...), the callback alone cannot unpack them"
            )
        self.prepare(pipe, latents, (latents.shape[-2], latents.shape[-1]))
        self.begin(pipe, torch.zeros_like(latents))
        if self._weights[0] * self.strength != 0:
            self._delta, self._done = None, 0
            raise UnmarkableError(
                f"injection {self.injection.mode!r} adds a share before the first step, where a callback on its "
                "own cannot reach: use `with diffmark.watermark(pipe, ...)`"
            )

    def _share(self, pipe: Any, index: int) -> Tensor | None:
        """Share `index` of delta in the scheduler's own scale, in float32; None where it is nothing."""
        weight = float(self._weights[index])
        if weight * self.strength == 0 or self._delta is None:
            return None
        return self._delta * (weight * _latent_scale(pipe, index))

    def _add(self, latents: Tensor, share: Tensor) -> Tensor:
        """latents + share in the latents' dtype; what rounding leaves out is added with the next share.

        A fiftieth of delta is often below half a unit in the last place of bfloat16 and would vanish every time.
        """
        wanted = latents.float() + share + self._owed
        added = wanted.to(latents.dtype)
        self._owed = wanted - added.float()
        return added

    def _pastes_original(self, pipe: Any) -> bool:
        """An inpainting pipeline with an ordinary denoiser overwrites what is outside the mask after every step."""
        return "mask" in self.tensor_inputs and pipe.unet.config.in_channels == self.codec.config.channels

    def _restore(self, latents: Tensor, mask: Tensor, share: Tensor | None) -> Tensor | None:
        """Outside the mask no denoiser was at work and every share was overwritten: the dose goes to z0 there."""
        lost = 0.0 if self.injection.mode == "final" else self.injection.dose
        if lost * self.strength == 0 or self._delta is None:
            return share
        restored = self._delta * lost * (1 - mask[: latents.shape[0]].float())
        return restored if share is None else share + restored


def _marking_class(plain: type, layer: PixelLayer | None, alone: bool) -> type:
    """A subclass of the pipeline's class that marks decoded pictures with `layer`; its name stays."""

    class Marking(plain):
        _diffmark_plain = plain

        @wraps(plain.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            arguments = inspect.signature(plain.__call__).bind(self, *args, **kwargs).arguments
            if arguments.get("padding_mask_crop") is not None:
                raise UnmarkableError(
                    "padding_mask_crop pastes unmarked pixels around the result: leave it out"
                )
            with layer.on(self) if layer else nullcontext():
                output = super().__call__(*args, **kwargs)
            if alone and layer and not layer.marked:
                raise UnmarkableError(
                    f"without a codec only decoded pictures of at least {MIN_SIDE} pixels a side can be marked: "
                    "this call gave none"
                )
            return output

    Marking.__name__, Marking.__qualname__ = plain.__name__, plain.__qualname__
    Marking.__module__ = plain.__module__
    return Marking


def _injecting_class(marking: type, callback: WatermarkCallback) -> type:
    """A subclass of a marking class that runs `callback` as well."""

    class Injecting(marking):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(marking.__call__).bind(self, *args, **kwargs)
            arguments = bound.arguments
            theirs = arguments.get("callback_on_step_end")
            wanted = list(arguments.get("callback_on_step_end_tensor_inputs") or ["latents"])
            wanted = list(getattr(theirs, "tensor_inputs", wanted))
            arguments["callback_on_step_end"] = _both(theirs, callback)
            arguments["callback_on_step_end_tensor_inputs"] = list(
                dict.fromkeys(wanted + callback.tensor_inputs)
            )
            try:
                output = marking.__call__(*bound.args, **bound.kwargs)
            finally:
                self.__dict__.pop("_diffmark_latents", None)
            if not callback.finished:
                raise UnmarkableError(
                    "the pipeline stopped before the last step, so its images are not fully marked"
                )
            return output

        def prepare_latents(self, *args: Any, **kwargs: Any) -> Any:
            output = super().prepare_latents(*args, **kwargs)
            latents, *rest = output if isinstance(output, tuple) else (output,)
            latents = latents.clone()  # latents given by the caller are the caller's
            bound = inspect.signature(super().prepare_latents).bind(*args, **kwargs).arguments
            callback.prepare(self, latents, _latent_size(self, latents, bound))
            self.__dict__["_diffmark_latents"] = latents
            return (latents, *rest) if isinstance(output, tuple) else latents

        def progress_bar(self, *args: Any, **kwargs: Any) -> Any:
            latents = self.__dict__.pop("_diffmark_latents", None)
            if latents is not None:
                callback.begin(self, latents)
            return super().progress_bar(*args, **kwargs)

    Injecting.__name__, Injecting.__qualname__ = marking.__name__, marking.__qualname__
    Injecting.__module__ = marking.__module__
    return Injecting


def _both(theirs: Callable[..., Any] | None, ours: WatermarkCallback) -> Callable[..., dict[str, Any]]:
    """The caller's own callback first, then the mark, as a plain function."""

    def run(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if theirs is not None:
            tensors = {**tensors, **(theirs(pipe, step, timestep, dict(tensors)) or {})}
        return ours(pipe, step, timestep, tensors)

    return run


def _check_strength(strength: float) -> None:
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be a finite number of at least 0, got {strength}")


def _check_free(pipe: Any) -> None:
    if hasattr(type(pipe), "_diffmark_plain"):
        raise UnmarkableError(f"this {type(pipe).__name__} is already inside a watermark context")


def _check_pixels(pipe: Any, pixel: PixelCodec | bool, injection: Injection | None) -> None:
    """Whether the pixel layer can mark this pipeline's pictures alone."""
    if pixel is False or injection is not None:
        raise ValueError("without a codec the pixel layer is the only mark: leave out pixel and injection")
    _check_free(pipe)
    if getattr(pipe, "image_processor", None) is None:
        raise UnmarkableError(
            f"{type(pipe).__name__} has no image_processor: its decoded pictures cannot be reached"
        )


def _check_pipeline(pipe: Any, codec: Codec, injection: Injection) -> None:
    name = type(pipe).__name__
    _check_free(pipe)
    for part in ("vae", "scheduler", "prepare_latents"):
        if getattr(pipe, part, None) is None:
            raise UnmarkableError(
                f"{name} has no {part}: it is not a latent diffusion pipeline that can be marked"
            )
    if "callback_on_step_end" not in inspect.signature(type(pipe).__call__).parameters:
        raise UnmarkableError(f"{name} takes no callback_on_step_end, so its latents cannot be reached")
    check_family(codec.config, pipe.vae)
    if injection.mode == "final":
        return
    scheduler = type(pipe.scheduler).__name__
    if scheduler not in SCHEDULERS or not getattr(pipe.scheduler.config, "skip_prk_steps", True):
        raise UnmarkableError(
            f"{scheduler} is not known to deliver a dose that is spread over steps; use injection mode 'final', "
            f"or one of {', '.join(SCHEDULERS)} (PNDM with skip_prk_steps)"
        )
    offers_mask = "mask" in type(pipe)._callback_tensor_inputs
    if "Inpaint" in name and not (offers_mask and getattr(pipe, "unet", None) is not None):
        raise UnmarkableError(f"{name} hides what it pastes back: only injection mode 'final' can mark it")


def _latent_size(pipe: Any, latents: Tensor, arguments: dict[str, Any]) -> tuple[int, int]:
    if latents.ndim == 4:
        return latents.shape[-2], latents.shape[-1]
    if not hasattr(pipe, "_pack_latents") or not {"height", "width"} <= arguments.keys():
        raise UnmarkableError(
            f"latents of shape {tuple(latents.shape)} are packed in a way that {type(pipe).__name__} does not tell"
        )
    cell = pipe.vae_scale_factor * 2
    return 2 * (int(arguments["height"]) // cell), 2 * (int(arguments["width"]) // cell)


def _latent_scale(pipe: Any, index: int) -> float:
    """Length of one unit of variance-preserving latents in the scheduler's own latents at step `index`.

    Euler and its kin carry z / sqrt(abar) = z * sqrt(1 + sigma^2); they tell it by an init_noise_sigma other
    than 1. The others, flow matching included, carry what the denoiser sees.
    """
    scheduler = pipe.scheduler
    if float(getattr(scheduler, "init_noise_sigma", 1.0)) == 1.0:
        return 1.0
    first = len(scheduler.timesteps) - pipe.num_timesteps  # img2img starts in the middle
    return float((1 + scheduler.sigmas[first + index].cpu().double() ** 2).sqrt())


def _shift_history(scheduler: Any, share: Tensor) -> None:
    """Let a multistep solver's memory jump along with its latents.

    DPM++ and UniPC extrapolate from earlier predictions of z0, and UniPC's corrector rebuilds the sample from the
    previous one. Left alone they would take the jump for curvature: DPM++ overshoots, UniPC undoes it. A share at
    noise level t moves z0 by share / alpha_t, and a sample at level s by alpha_s times that.
    """
    if not isinstance(scheduler, (DPMSolverMultistepScheduler, UniPCMultistepScheduler)):
        return
    step = scheduler.step_index
    alpha_t, _ = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[step])
    jump = share / alpha_t
    predicts_z0 = getattr(scheduler, "predict_x0", "++" in scheduler.config.get("algorithm_type", ""))
    if predicts_z0:
        scheduler.model_outputs = [
            past if past is None else (past + jump).to(past.dtype) for past in scheduler.model_outputs
        ]
    if getattr(scheduler, "last_sample", None) is not None:
        alpha_s, _ = scheduler._sigma_to_alpha_sigma_t(scheduler.sigmas[step - 1])
        scheduler.last_sample = scheduler.last_sample + (jump * alpha_s).to(scheduler.last_sample.dtype)
