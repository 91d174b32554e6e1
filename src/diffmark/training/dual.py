"""Algorithm 2: dual-path training. `step_terms` is one step, `train` the loop around it.

The bridge carries gradients from the decoder to the encoder; the DDIM path is detached and shows the decoder what
it will meet. Losses open in groups (`diffmark.training.curriculum`). Frozen models are in no optimiser and carry no
gradients of their own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from diffmark.latent import vae
from diffmark.latent.codec import Codec
from diffmark.training import curriculum, losses
from diffmark.training.config import TrainingConfig
from diffmark.training.curriculum import learning_rate
from diffmark.training.draws import Draws
from diffmark.training.guards import CollapseGuard, check_finite
from diffmark.training.loop import run_steps
from diffmark.training.means import RunningMeans
from diffmark.training.naturalness import statistics_distance
from diffmark.training.optimisation import Optimiser, make_accelerator, part_size, parts_of_step
from diffmark.training.paths import Paths, Start, freeze
from diffmark.training.perception import perceptual_difference
from diffmark.training.pixels import Terms, round_trip, through_pixels
from diffmark.training.pretraining import finished, perturb, warm_start
from diffmark.training.regeneration import regenerate
from diffmark.training.replay import Replay, Triple
from diffmark.training.runs import Run
from diffmark.training.samples import measure, save_samples


def sigma_of(config: TrainingConfig, step: int) -> float:
    """The target of delta's standard deviation at a step."""
    settings = config.delta
    return curriculum.sigma_target(step, settings.sigma_start, settings.sigma_end, settings.horizon)


def weights_of(config: TrainingConfig, step: int) -> dict[str, float]:
    """w_i(t) of every loss."""
    weights = config.weights
    named = (
        "lcm",
        "ddim",
        "mag",
        "orth",
        "prvl",
        "lafid",
        "freq",
        "neg",
        "regen",
        "robust",
        "regen_diff",
        "percep",
        "natural",
    )
    values = {name: float(getattr(weights, name)) for name in named}
    values["kl"] = curriculum.kl_weight(step, weights.kl_start, weights.kl_end, weights.kl_warmup)
    return values


def step_terms(
    codec: Codec,
    autoencoder: nn.Module,
    paths: Paths,
    config: TrainingConfig,
    step: int,
    draws: Draws,
    count: int,
    replay: Replay | None = None,
) -> tuple[Terms, Terms]:
    """The open losses of one batch, unweighted, and figures worth logging."""
    gates, settings = config.gates, config.paths
    weights = weights_of(config, step)
    secrets = draws.secrets(count, codec.config.length)
    sigma = sigma_of(config, step)
    made = perturb(codec.encoder, secrets, draws, config.delta, sigma)
    if config.optimiser.encoder_rate == 0:  # the decoder alone: no gradient through the bridge
        made = replace(made, delta=made.delta.detach())
    start = paths.draw(draws, count)
    terms: Terms = {}

    # Bridge: gradients to encoder and decoder.
    z_bridge = paths.bridge(start, made.delta)
    logits = codec.decoder(z_bridge)
    if curriculum.is_open(step, gates.reconstruction):
        terms["lcm"] = losses.cross_entropy(logits, secrets)

    # DDIM path: gradients to the decoder only.
    triple = _ddim_triple(paths, start, made.delta, secrets, config, step, draws, replay)
    if triple is not None and curriculum.is_open(step, gates.reconstruction):
        terms["ddim"] = losses.cross_entropy(codec.decoder(triple[0]), triple[1])

    # What holds delta in shape: gradients to the encoder only.
    terms["mag"] = losses.magnitude(made.delta, sigma)
    terms["kl"] = losses.kl_divergence(made.mean, made.log_variance)
    terms["orth"] = losses.orthogonality(made.delta, settings.squared_orth)
    if curriculum.is_open(step, gates.frequency):
        terms["freq"] = losses.low_frequency(made.delta, settings.radius)

    figures = _figures(logits, secrets, made.delta, sigma)
    if curriculum.is_open(step, gates.imperceptibility):
        shown = max(round(settings.decoded * count), 1)
        z_clean = paths.bridge(start.first(shown), None)
        terms["lafid"] = losses.latent_fidelity(z_bridge[:shown], z_clean)
        if weights["neg"]:
            unmarked = z_clean if triple is None else triple[2]
            terms["neg"] = losses.negative_entropy(codec.decoder(unmarked))
        if weights["regen"] and settings.regen_on == "ddim" and triple is not None:
            z_regen = round_trip(autoencoder, vae.decode(autoencoder, triple[0]), settings.rounding)
            terms["regen"] = losses.cross_entropy(codec.decoder(z_regen), triple[1])
        if weights["regen_diff"]:
            terms["regen_diff"], figures["accuracy_regen_diff"] = _regenerated(
                codec, paths, z_bridge, secrets, config, draws
            )
        compared = weights["prvl"] or weights["percep"] or weights["natural"]
        if compared or settings.regen_on == "bridge" or curriculum.is_open(step, gates.robustness):
            pixels = vae.decode(autoencoder, z_bridge[:shown])
            if compared:
                with torch.no_grad():
                    clean_pixels = vae.decode(autoencoder, z_clean)
                if weights["prvl"]:
                    terms["prvl"] = losses.peak_region(pixels, clean_pixels, settings.region)
                terms["percep"] = perceptual_difference(pixels, clean_pixels)
                terms["natural"] = statistics_distance(pixels, clean_pixels)
            more, logged = through_pixels(codec, autoencoder, pixels, secrets[:shown], config, step, draws)
            terms, figures = {**terms, **more}, {**figures, **logged}
    return {name: term for name, term in terms.items() if weights[name] != 0}, figures


def _regenerated(
    codec: Codec, paths: Paths, z: Tensor, secrets: Tensor, config: TrainingConfig, draws: Draws
) -> tuple[Tensor, Tensor]:
    """L_regen_diff on the first images of a batch, and the share of their bits that is read."""
    if paths.denoisers is None:
        raise ValueError("weights.regen_diff regenerates with a denoiser: give model.pipeline")
    count = max(round(config.regeneration.share * len(z)), 1)
    logits = codec.decoder(regenerate(z[:count], paths.denoisers, config.regeneration, draws))
    return losses.cross_entropy(logits, secrets[:count]), losses.bit_accuracy(logits, secrets[:count]).mean()


def _ddim_triple(
    paths: Paths,
    start: Start,
    delta: Tensor,
    secrets: Tensor,
    config: TrainingConfig,
    step: int,
    draws: Draws,
    replay: Replay | None,
) -> Triple | None:
    """(marked z0, secrets, clean z0) of the DDIM path: of this batch, or replayed from earlier ones."""
    settings, gate = config.paths, config.gates.imperceptibility
    if settings.ddim_steps == 0:
        return None
    if replay is None or len(replay) == 0 or step % settings.refresh_every == 0:
        # Clean latents cost another path and only L_neg asks for them; replayed ones may be asked for later.
        asked = bool(config.weights.neg) and (
            curriculum.is_open(step, gate) or (replay is not None and gate >= 0)
        )
        marked = paths.ddim(start, delta)
        fresh = (marked, secrets, paths.ddim(start, None) if asked else torch.zeros_like(marked))
        if replay is None:
            return fresh
        replay.push(fresh)
    return replay.draw(draws, len(secrets))


def _figures(logits: Tensor, secrets: Tensor, delta: Tensor, sigma: float) -> Terms:
    bits = losses.bit_accuracy(logits, secrets)
    return {
        "accuracy": bits.mean(),
        "accuracy_worst_bit": bits.min(),
        "delta_deviation": losses.deviation(delta).mean(),
        "diversity": 1 - losses.cosines(delta).abs().mean(),
        "sigma_target": torch.tensor(sigma),
    }


class DualPath:
    """Algorithm 2 in a folder, as the loop runs it."""

    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        autoencoder: nn.Module,
        paths: Paths,
        codec: Codec | None,
        accelerator: Accelerator,
    ) -> None:
        settings = config.optimiser
        self.config, self.folder, self.autoencoder, self.paths = config, folder, autoencoder, paths
        self.accelerator = accelerator
        self.codec = warm_start(codec, config).to(accelerator.device)
        rates, clips = (
            (settings.encoder_rate, settings.decoder_rate),
            (settings.clip_encoder, settings.clip_decoder),
        )
        self.optimiser = Optimiser(self.codec, accelerator, rates, clips, settings.weight_decay)
        self.run = Run(folder, config, accelerator, config.log.keep)
        self.replay = Replay(config.paths.replay) if config.paths.replay else None
        self.guard, self.means, self.best = CollapseGuard(config.guard), RunningMeans(), -1.0
        self.count = part_size(accelerator, settings.batch, settings.accumulation)
        self.codec.train()
        if settings.frozen_norms:
            freeze_norms(self.codec)

    def step(self, step: int) -> bool:
        config, settings, accelerator = self.config, self.config.optimiser, self.accelerator
        self.optimiser.set_rates(
            lambda peak: learning_rate(step, peak, settings.warmup, settings.steps, settings.final_rate)
        )
        weights = weights_of(config, step)
        for part in parts_of_step(accelerator, settings.accumulation):
            draws = Draws(config.seed, step, part, accelerator.device)
            with accelerator.autocast():
                terms, figures = step_terms(
                    self.codec, self.autoencoder, self.paths, config, step, draws, self.count, self.replay
                )
                loss = sum((weights[name] * term for name, term in terms.items()), torch.zeros(()))
            self.optimiser.backward(loss / settings.accumulation)
            values = self.means.add({**{f"loss_{k}": v for k, v in terms.items()}, "loss": loss, **figures})
            check_finite(step, {name: value for name, value in values.items() if name.startswith("loss")})
        self.means.add(self.optimiser.update())
        self.guard.check(step, values["accuracy"], values["delta_deviation"])
        return False

    def measured(self, done: int, complete: bool) -> dict[str, float]:
        log = self.config.log
        measuring = done % log.measure_every == 0 or complete
        sampling = (
            bool(log.sample_every) and done % log.sample_every == 0 and self.accelerator.is_main_process
        )
        if not (measuring or sampling):
            return {}
        if measuring:
            self.optimiser.average_buffers()
        present = finished(self.codec, self.config, sigma_of(self.config, done - 1))
        figures: dict[str, float] = {}
        if measuring:
            figures = measure(present, self.autoencoder, self.paths, self.config)
            self._keep_if_best(present, figures, done)
        if sampling:
            file = self.folder / "samples" / f"{done:08d}.png"
            save_samples(present, self.autoencoder, self.paths, self.config, file)
        return figures

    def _keep_if_best(self, present: Codec, figures: dict[str, float], done: int) -> None:
        """While sigma is still falling an early codec is better only because it is stronger: it does not count."""
        settled = done - 1 >= min(self.config.delta.horizon, self.config.optimiser.steps - 1)
        if settled and figures["measured_accuracy"] > self.best:
            self.best = figures["measured_accuracy"]
            chosen_by = {name: v for name, v in figures.items() if name.startswith("measured")}
            _save_codec(present, self.folder / "best", done, chosen_by, self.accelerator)

    def shared(self) -> dict[str, Any]:
        return {"codec": self.codec.state_dict(), "best": self.best}

    def own(self) -> dict[str, Any]:
        replay = {} if self.replay is None else {"replay": self.replay.state_dict()}
        return {"guard": self.guard.state_dict(), **replay}

    def restore(self, shared: dict[str, Any], own: dict[str, Any]) -> None:
        self.codec.load_state_dict(shared["codec"])
        self.best = shared["best"]
        self.guard.load_state_dict(own["guard"])
        if self.replay is not None:
            self.replay.load_state_dict(own["replay"])


def train(
    config: TrainingConfig,
    folder: str | Path,
    autoencoder: nn.Module,
    paths: Paths,
    codec: Codec | None = None,
    accelerator: Accelerator | None = None,
    stop_after: int | None = None,
) -> Codec:
    """Algorithm 2 in `folder`, from its last checkpoint if it has one; returns the best codec measured.

    `codec` is the pretrained one. `stop_after` ends a session early; the next one goes on from there.
    """
    folder, settings = Path(folder), config.optimiser
    accelerator = accelerator or make_accelerator(settings.precision)
    torch.manual_seed(config.seed)
    freeze(autoencoder)
    training = DualPath(config, folder, autoencoder, paths, codec, accelerator)
    done = run_steps(training, settings.steps, config.log.log_every, config.log.save_every, stop_after)
    present = finished(training.codec, config, sigma_of(config, max(done - 1, 0)))
    _save_codec(present, folder / "codec", done, {}, accelerator)
    accelerator.wait_for_everyone()
    return Codec.from_pretrained(folder / ("best" if training.best >= 0 else "codec"))


def freeze_norms(codec: Codec) -> None:
    """Batch norms use the statistics that they have, and leave them: a few images a step would only be noise."""
    for module in codec.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def _save_codec(
    codec: Codec, folder: Path, step: int, figures: dict[str, Any], accelerator: Accelerator
) -> None:
    if accelerator.is_main_process:
        codec.provenance = {"step": step, **figures}
        codec.save_pretrained(folder)
