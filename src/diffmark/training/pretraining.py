"""Algorithm 1: encoder and decoder learn a mapping from secrets to deltas and back, without any diffusion model.

The decoder reads delta, and delta under noise that rises over the run. With `pretraining.host`, which the paper
does not have, the noisy variant lies on latents of pictures as well, which is what a decoder meets later: it
learns to tell delta from them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor

from diffmark.latent.codec import Codec
from diffmark.latent.networks import DeltaEncoder, rescale
from diffmark.training import curriculum, losses
from diffmark.training.config import DeltaConfig, TrainingConfig
from diffmark.training.draws import Draws
from diffmark.training.guards import CollapseGuard, check_finite
from diffmark.training.loop import run_steps
from diffmark.training.means import RunningMeans
from diffmark.training.optimisation import Optimiser, make_accelerator, part_size
from diffmark.training.runs import Run


@dataclass(frozen=True)
class Perturbation:
    """delta of a batch of secrets, and the Gaussian that it was drawn from."""

    delta: Tensor  # (B, C, h, w)
    mean: Tensor  # before alpha
    log_variance: Tensor


def perturb(
    encoder: DeltaEncoder, secrets: Tensor, draws: Draws, config: DeltaConfig, sigma: float
) -> Perturbation:
    """E_phi(secrets): alpha * (mu + sigma * eps), eps from `draws`; brought to `sigma` if normalised."""
    mean, log_variance = encoder.distribution(secrets)
    sample = mean
    if config.variational:
        sample = mean + torch.exp(0.5 * log_variance) * draws.normal(*mean.shape)
    if not config.normalise:
        return Perturbation(encoder.alpha * sample, mean, log_variance)
    # Normalised, alpha's gradient is rounding noise, which AdamW blows up to full steps: alpha would wander through
    # zero, turn the sign of every delta and undo the training. So it stays where it is.
    return Perturbation(rescale(encoder.alpha.detach() * sample, sigma), mean, log_variance)


def pretraining_terms(
    codec: Codec, config: TrainingConfig, step: int, draws: Draws, count: int, hosts: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The losses of one step of Algorithm 1, unweighted, and figures worth logging."""
    settings = config.pretraining
    secrets = draws.secrets(count, codec.config.length)
    delta = perturb(codec.encoder, secrets, draws, config.delta, pretraining_sigma(config, step)).delta

    clean = codec.decoder(delta)
    sigma_n = curriculum.pretraining_noise(step, settings.noise_start, settings.noise_end, settings.steps)
    seen = delta
    if settings.host:
        assert hosts is not None  # pretrain() has checked it
        rows = draws.indices(count, len(hosts))
        seen = seen + hosts[rows].to(seen)
    moved = round(settings.geometry_share * count) if settings.geometry else 0
    if moved:
        strength = curriculum.ramp(step, 0, settings.geometry, settings.geometry_warmup)
        seen = torch.cat([shift_geometry(seen[:moved], strength, draws), seen[moved:]])
    smoothed = round(settings.smooth_share * count)
    if smoothed:
        means = F.avg_pool2d(F.pad(seen[:smoothed], (1, 1, 1, 1), mode="reflect"), 3, stride=1)
        seen = torch.cat([means, seen[smoothed:]])
    noisy = codec.decoder(seen + sigma_n * draws.normal(*delta.shape))

    terms = {
        "clean": losses.cross_entropy(clean, secrets),
        "noisy": losses.cross_entropy(noisy, secrets),
        "orth": losses.orthogonality(delta, config.paths.squared_orth),
    }
    figures = {
        "accuracy": losses.bit_accuracy(clean, secrets).mean(),
        "accuracy_noisy": losses.bit_accuracy(noisy, secrets).mean(),
        "accuracy_worst_bit": losses.bit_accuracy(noisy, secrets).min(),
        "delta_deviation": losses.deviation(delta).mean(),
        "diversity": 1 - losses.cosines(delta).abs().mean(),
        "sigma_n": torch.tensor(sigma_n),
    }
    if smoothed:
        figures["accuracy_smoothed"] = losses.bit_accuracy(noisy[:smoothed], secrets[:smoothed]).mean()
    if moved:
        figures["accuracy_moved"] = losses.bit_accuracy(noisy[:moved], secrets[:moved]).mean()
        figures["accuracy_still"] = losses.bit_accuracy(noisy[moved:], secrets[moved:]).mean()
    return terms, figures


def shift_geometry(latents: Tensor, strength: float, draws: Draws) -> Tensor:
    """Rotation by up to 45 strength degrees and a crop of down to 1 - strength / 2 of the area, for each image.

    On latents, which move almost as pixels do: a cheap stand-in for these attacks on the image.
    """
    count = len(latents)
    drawn = draws.uniforms(count, 4)
    angle = (2 * drawn[:, 0] - 1) * strength * math.pi / 4
    side = (1 - 0.5 * strength * drawn[:, 1]).sqrt()
    shift = (2 * drawn[:, 2:] - 1) * (1 - side)[:, None]
    cosine, sine = side * angle.cos(), side * angle.sin()
    rows = [torch.stack([cosine, -sine, shift[:, 0]], dim=1), torch.stack([sine, cosine, shift[:, 1]], dim=1)]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(latents.shape), align_corners=False)
    return F.grid_sample(latents, grid.to(latents), align_corners=False)


def warm_start(codec: Codec | None, config: TrainingConfig) -> Codec:
    """A codec of this run's config, with the weights of an earlier one if it is given."""
    fresh = Codec(config.codec, config.dosing)
    if codec is None:
        return fresh
    try:
        fresh.load_state_dict(codec.state_dict())
    except RuntimeError as error:
        raise ValueError(f"the codec to start from does not fit the [codec] table: {error}") from None
    return fresh


def finished(codec: Codec, config: TrainingConfig, sigma: float) -> Codec:
    """The codec as it is used after training: every delta has exactly sigma, if it was trained so."""
    deviation = sigma if config.delta.normalise else None
    copy = Codec(config.codec, replace(config.dosing, deviation=deviation)).to(codec.device)
    copy.load_state_dict(codec.state_dict())
    return copy.eval()


def pretraining_sigma(config: TrainingConfig, step: int) -> float:
    """delta's standard deviation at a step, where it is normalised."""
    settings = config.pretraining
    start, end = (sigma or config.delta.sigma_start for sigma in (settings.sigma_start, settings.sigma_end))
    return curriculum.ramp(step, start, end, settings.steps)


class Pretraining:
    """Algorithm 1 in a folder, as the loop runs it."""

    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        hosts: Tensor | None,
        codec: Codec | None,
        accelerator: Accelerator,
    ) -> None:
        settings = config.pretraining
        self.config, self.hosts, self.accelerator = config, hosts, accelerator
        self.codec = warm_start(codec, config).to(accelerator.device)
        rates = (settings.encoder_rate, settings.decoder_rate)
        clips = (config.optimiser.clip_encoder, config.optimiser.clip_decoder)
        self.optimiser = Optimiser(self.codec, accelerator, rates, clips, config.optimiser.weight_decay)
        self.run = Run(folder, config, accelerator, config.log.keep)
        self.guard, self.means = CollapseGuard(config.guard), RunningMeans()
        self.recent: deque[float] = deque(maxlen=settings.stop_after)
        self.count = part_size(accelerator, settings.batch, 1)
        self.codec.train()

    def step(self, step: int) -> bool:
        config, settings, accelerator = self.config, self.config.pretraining, self.accelerator
        self.optimiser.set_rates(
            lambda peak: curriculum.learning_rate(
                step, peak, settings.warmup, settings.steps, settings.final_rate
            )
        )
        draws = Draws(config.seed, step, accelerator.process_index, accelerator.device)
        with accelerator.autocast():
            terms, figures = pretraining_terms(self.codec, config, step, draws, self.count, self.hosts)
            weights = {"clean": settings.clean, "noisy": settings.noisy, "orth": settings.orth}
            loss = sum((weight * terms[name] for name, weight in weights.items()), torch.zeros(()))
        self.optimiser.backward(loss)
        norms = self.optimiser.update()

        values = self.means.add({"loss": loss, **terms, **figures, **norms})
        check_finite(step, {name: values[name] for name in (*terms, "loss")})
        self.guard.check(step, values["accuracy_noisy"], values["delta_deviation"])
        read = torch.tensor(
            values["accuracy_noisy" if settings.host else "accuracy"], device=accelerator.device
        )
        self.recent.append(float(accelerator.reduce(read, reduction="mean")))  # all processes stop together
        return len(self.recent) == settings.stop_after and min(self.recent) >= settings.stop_accuracy

    def measured(self, done: int, complete: bool) -> dict[str, float]:
        return {}

    def shared(self) -> dict[str, Any]:
        return {"codec": self.codec.state_dict()}

    def own(self) -> dict[str, Any]:
        return {"guard": self.guard.state_dict(), "recent": list(self.recent)}

    def restore(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        self.codec.load_state_dict(shared["codec"])
        self.guard.load_state_dict(own["guard"])
        self.recent.extend(own["recent"])


def pretrain(
    config: TrainingConfig,
    folder: str | Path,
    hosts: Tensor | None = None,
    codec: Codec | None = None,
    accelerator: Accelerator | None = None,
    stop_after: int | None = None,
) -> Codec:
    """Algorithm 1 in `folder`, from its last checkpoint if it has one; returns the codec.

    `hosts` are latents of pictures (N, C, h, w), needed with pretraining.host. `stop_after` ends a session early.
    """
    settings, folder = config.pretraining, Path(folder)
    if settings.host and hosts is None:
        raise ValueError("pretraining.host lays delta on latents of pictures: give data.pictures")
    accelerator = accelerator or make_accelerator(config.optimiser.precision)
    torch.manual_seed(config.seed)
    training = Pretraining(config, folder, hosts, codec, accelerator)
    log = config.log
    done = run_steps(training, settings.steps, log.log_every, log.save_every, stop_after, "pretraining")
    trained = finished(training.codec, config, pretraining_sigma(config, done))
    if accelerator.is_main_process:
        trained.save_pretrained(folder / "codec")
    return trained
