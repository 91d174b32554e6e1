"""The generation layer while a pipeline denoises: each step's share of delta, added to its latents.

`callback_on_step_end` reaches the latents after every step, and where a pipeline has no such callback its
scheduler's `step` does. What neither can reach is the moment before the first step: `diffmark.watermark` can.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from diffusers.callbacks import PipelineCallback
from torch import Tensor

from diffmark.latent.codec import Codec, NoiseCodec
from diffmark.latent.injection import Injection
from diffmark.latent.spaces import pixels_per_latent
from diffmark.latent.vae import check_family
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.latents import LatentMark, check_strength
from diffmark.mark.packing import LayoutError, restore
from diffmark.mark.readback import Verify, check_verify, complain, shortfall
from diffmark.mark.schedulers import SCHEDULERS, delivers, latent_scale, shift_history, steps_of
from diffmark.secret import SecretLike, as_secrets

FPR = 1e-3  # at which the secret has to be read back: that of a verdict, as pictures differ in what they can hold


class WatermarkCallback(PipelineCallback):
    """Adds the next step's share of delta at the end of each step; composes with other diffusers callbacks.

    On its own it cannot reach the latents before the first step, so it serves injections whose first share is
    zero (final, and late with enough steps) and raises for the others: use `watermark`, which can.
    """

    def __init__(
        self,
        pipe: Any,
        codec: Codec,
        secrets: SecretLike,
        strength: float = 1.0,
        injection: Injection | None = None,
        verify: Verify = "warn",
    ) -> None:
        super().__init__()
        self.injection = injection or codec.injection
        check_strength(strength)
        check_verify(verify)
        check_steps(pipe, codec, self.injection)
        self.codec = codec
        self.secrets = as_secrets(secrets, codec.config.length)
        self.strength = strength
        self.verify: Verify = verify if strength else None
        offered = getattr(type(pipe), "_callback_tensor_inputs", ())
        # An LCM's picture is `denoised`; where an inpainting pipeline pastes the original back, `mask` tells.
        self._tensor_inputs = ["latents"] + [name for name in ("denoised", "mask") if name in offered]
        self._mark: LatentMark | None = None  # of the run that is on
        self._size = (0, 0)
        self._timesteps, self._weights = np.zeros(0), np.zeros(1)
        self._done = 0  # steps whose share has been added

    @property
    def tensor_inputs(self) -> list[str]:
        return self._tensor_inputs

    @property
    def finished(self) -> bool:
        """Whether the whole dose of the last run has been delivered."""
        return self._done == len(self._weights)

    def reset(self) -> None:
        """Before a run."""
        self._mark, self._done = None, 0

    def prepare(self, pipe: Any, latents: Tensor, size: tuple[int, int]) -> None:
        """Before a run: delta for latents of this shape; `size` is the latents' (h, w) before any packing."""
        self.reset()
        try:
            self._mark = LatentMark(self.codec, self.secrets, latents, self.strength, size)
        except LayoutError as error:
            raise UnmarkableError(f"{type(pipe).__name__}: {error}") from error
        self._size = size

    def begin(self, pipe: Any, latents: Tensor) -> None:
        """Right before the first step: fix the shares and add the first one to `latents`, in place."""
        self._timesteps = pipe.scheduler.timesteps[-steps_of(pipe) :].cpu().double().numpy()
        self._weights = self.injection.weights(self._timesteps / pipe.scheduler.config.num_train_timesteps)
        if self._mark is not None and self._mark.in_noise:
            scale = float(getattr(pipe.scheduler, "init_noise_sigma", 1.0))
            latents.copy_(self._mark.into_noise(latents / scale, float(self._weights[0])) * scale)
        elif self._mark is not None:
            latents.copy_(self._mark.add(latents, self._share(pipe, 0)))
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
        if step_index == 0 and not (self._mark is not None and self._done == 1):
            self._begin_late(pipeline, latents)
        if float(timesteps) != self._timesteps[step_index]:
            raise UnmarkableError(
                f"step {step_index} is at time {float(timesteps):g}, expected {self._timesteps[step_index]:g}: a "
                "run that stops before the image is finished (denoising_end) cannot carry the mark; mark the next"
            )
        last = step_index + 2 == len(self._weights)
        share = self._share(pipeline, step_index + 1)
        if last and self._pastes_original(pipeline):
            share = self._whole_outside(callback_kwargs["mask"], share)
        if share is not None and self._mark is not None:
            callback_kwargs["latents"] = self._mark.add(latents, share)
            if not last:
                shift_history(pipeline.scheduler, share)
            elif callback_kwargs.get("denoised") is not None:
                callback_kwargs["denoised"] = callback_kwargs["denoised"] + share.to(latents.dtype)
        self._done = step_index + 2
        if last:
            self._read_back(callback_kwargs.get("denoised", callback_kwargs["latents"]))
            self._mark = None
        return callback_kwargs

    @contextmanager
    def in_scheduler(self, pipe: Any) -> Iterator[None]:
        """While this is open, shares are added to what the pipeline's scheduler gives: it has no callback."""
        scheduler, step, own = pipe.scheduler, pipe.scheduler.step, vars(pipe.scheduler).get("step")
        done = 0

        def marked(model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal done
            output = step(model_output, timestep, sample, *args, **kwargs)
            parts = output if isinstance(output, tuple) else (output.prev_sample,)
            values = {"latents": parts[0]}
            if len(parts) > 1 and len(scheduler.timesteps) == 1:  # PixArt takes z0 of a single step
                values["denoised"] = parts[1]
            values = self.callback_fn(pipe, done, timestep, values)
            done += 1
            if not isinstance(output, tuple):
                output.prev_sample = values["latents"]
                return output
            return (*values.values(), *parts[len(values) :])

        scheduler.step = marked
        try:
            yield
        finally:
            if own is None:
                del scheduler.step
            else:
                scheduler.step = own

    def _begin_late(self, pipe: Any, latents: Tensor) -> None:
        """The callback runs on its own: the first step is over, which is fine if its share was zero."""
        if latents.ndim == 3:
            raise UnmarkableError(
                "packed latents need diffmark.watermark(...) of a pipeline that prepares them: their height and "
                "width are not known here"
            )
        cell = 2 if latents.ndim == 4 and latents.shape[1] == 4 * self.codec.config.channels else 1
        self.prepare(pipe, latents, (cell * latents.shape[-2], cell * latents.shape[-1]))
        self.begin(pipe, torch.zeros_like(latents))
        if self._weights[0] * self.strength != 0:
            self.reset()
            raise UnmarkableError(
                f"injection {self.injection.mode!r} adds a share before the first step, where a callback on its "
                "own cannot reach: use `with diffmark.watermark(pipe, ...)`"
            )

    def _share(self, pipe: Any, index: int) -> Tensor | None:
        """Share `index` of delta in the scheduler's own scale; None where it is nothing."""
        weight = float(self._weights[index])
        if weight == 0 or self._mark is None:
            return None
        return self._mark.share(weight * latent_scale(pipe.scheduler, index, len(self._timesteps)))

    def _pastes_original(self, pipe: Any) -> bool:
        """An inpainting pipeline with an ordinary denoiser overwrites what is outside the mask after every step."""
        return "mask" in self.tensor_inputs and pipe.unet.config.in_channels == self.codec.config.channels

    def _whole_outside(self, mask: Tensor, share: Tensor | None) -> Tensor | None:
        """Outside the mask no denoiser was at work and every share was overwritten: the dose goes to z0 there."""
        lost = 0.0 if self.injection.mode == "final" else self.injection.dose
        whole = self._mark.share(lost) if self._mark is not None else None
        if whole is None:
            return share
        restored = whole * (1 - mask[: len(whole)].float())
        return restored if share is None else share + restored

    @torch.no_grad()
    def _read_back(self, z0: Tensor) -> None:
        """Read the secret from z0 once."""
        if self.verify is None:
            return
        latents = restore(z0.detach().float(), self.codec.config.channels, self._size)
        margins = self.codec.margins(self.codec.decode(latents).cpu().numpy(), self.codec.keyed)
        secrets = np.broadcast_to(self.secrets, (len(margins), self.secrets.shape[1]))
        for problem in shortfall("the generation layer", margins, secrets, FPR):
            complain(self.verify, f"{problem}, before decoding")


def without_noise(pipe: Any) -> str | None:
    """Why no run of a pipeline begins with noise that can be reached; None if runs do."""
    if "strength" in inspect.signature(type(pipe).__call__).parameters:
        return "starts from a picture"  # img2img, inpainting
    if not hasattr(pipe, "prepare_latents"):
        return "prepares its latents where they cannot be reached"
    return None


def check_free(pipe: Any) -> None:
    """Whether no watermark context is open on the pipeline."""
    if hasattr(type(pipe), "_diffmark_plain"):
        raise UnmarkableError(f"this {type(pipe).__name__} is already inside a watermark context")


def check_steps(pipe: Any, codec: Codec, injection: Injection) -> None:
    """Raise unless a pipeline's latents can be reached, are the codec's, and keep a dose."""
    name = type(pipe).__name__
    check_free(pipe)
    for part in ("vae", "scheduler"):
        if getattr(pipe, part, None) is None:
            raise UnmarkableError(
                f"{name} has no {part}: it is not a latent diffusion pipeline that can be marked in its latents"
            )
    check_family(codec.config, pipe.vae)
    if isinstance(codec, NoiseCodec) != (injection.mode == "initial"):
        raise UnmarkableError(
            "codecs of initial noise, and no others, have the injection 'initial'; got "
            f"{type(codec).__name__} with {injection.mode!r}"
        )
    if injection.mode == "initial" and (why := without_noise(pipe)):
        raise UnmarkableError(
            f"{name} {why}, and this codec marks the noise that a run starts from: the pixel layer marks its "
            "pictures (codec None)"
        )
    if injection.mode in ("final", "initial"):
        return
    if not delivers(pipe.scheduler):
        raise UnmarkableError(
            f"{type(pipe.scheduler).__name__} is not known to deliver a dose that is spread over steps; use "
            f"injection mode 'final', or one of {', '.join(SCHEDULERS)} (PNDM with skip_prk_steps)"
        )
    offers_mask = "mask" in getattr(type(pipe), "_callback_tensor_inputs", ())
    if "Inpaint" in name and not (offers_mask and getattr(pipe, "unet", None) is not None):
        raise UnmarkableError(f"{name} hides what it pastes back: only injection mode 'final' can mark it")
    if not hasattr(pipe, "prepare_latents") and injection.weights(np.linspace(1, 0.02, 50))[0] != 0:
        raise UnmarkableError(
            f"{name} prepares its latents where they cannot be reached, and injection {injection.mode!r} adds a "
            "share before the first step: use 'final' or 'late'"
        )


def latent_size(pipe: Any, latents: Tensor, channels: int, arguments: dict[str, Any]) -> tuple[int, int]:
    """(h, w) of latents before packing; `arguments` are those of the pipeline's `prepare_latents`."""
    if latents.ndim != 3:
        cell = 2 if latents.ndim == 4 and latents.shape[1] == 4 * channels else 1
        return cell * latents.shape[-2], cell * latents.shape[-1]
    if not {"height", "width"} <= arguments.keys():
        raise UnmarkableError(
            f"latents of shape {tuple(latents.shape)} are packed in a way that {type(pipe).__name__} does not tell"
        )
    patch = 2 if latents.shape[2] == 4 * channels else 1
    cell = pixels_per_latent(pipe.vae) * patch
    return patch * (int(arguments["height"]) // cell), patch * (int(arguments["width"]) // cell)


def both(first: Callable[..., Any] | None, mark: WatermarkCallback) -> Callable[..., dict[str, Any]]:
    """The caller's own callback first, then the mark, as a plain function."""

    def run(pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if first is not None:
            tensors = {**tensors, **(first(pipe, step, timestep, dict(tensors)) or {})}
        return mark(pipe, step, timestep, tensors)

    return run
