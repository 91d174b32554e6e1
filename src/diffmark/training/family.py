"""A codec for the latent space of real models, trained with an autoencoder alone (injection mode `final`).

Two stages, each a run of its own in the run's folder:

channel      delta on latents of photographs, its way through pixels replaced by a measured convolution and noise
round_trip   part of every batch really goes through an autoencoder and attacked 8-bit pixels, as crops laid back
             into the latents: a decoded crop costs a quarter of a decoded picture

Strength is stated as the PSNR that the channel predicts, not as delta's deviation: among the deltas that cost as
much in pixels, the encoder then learns the ones that are read best.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from diffmark import vae
from diffmark.codec import Codec, CodecConfig
from diffmark.training import curriculum, losses, robustness
from diffmark.training.chance import Chance
from diffmark.training.channel import Channel
from diffmark.training.config import ATTACKS, GuardConfig, _read_tables, from_dict
from diffmark.training.guards import CollapseGuard, check_finite
from diffmark.training.hosts import draw_hosts
from diffmark.training.meter import Meter
from diffmark.training.optimisation import Optimiser, make_accelerator
from diffmark.training.pretraining import shift_geometry
from diffmark.training.runs import Run
from diffmark.training.spread import start_matched, start_spread

STAGES = ("channel", "round_trip")
RIM = 2  # latents at the rim of a crop that are not laid back: the autoencoder missed their neighbours
VALIDATED, THROUGH = 64, 16  # hosts that a codec is validated on, and of these where all go through pixels
SECRETS = 64  # drawn to find delta's mean deviation
MATCHED = 256  # hosts that a codec with matched filters is started on


@dataclass(frozen=True)
class StageConfig:
    """One stage of `diffmark train family`."""

    steps: int = 1000
    batch: int = 16
    repeats: int = 4  # hosts of a batch that carry the same secret: a delta costs more to make than to read
    encoder_rate: float = 3e-4
    decoder_rate: float = 2e-4
    warmup: int = 50
    final_rate: float = 1e-6
    psnr_start: float = 22.0  # strength at the first step, in dB ...
    psnr_end: float = 31.0  # ... and from `psnr_steps` on
    psnr_steps: int = 600
    noise: float = 0.05  # white, on the latents that the decoder reads
    geometry: float = 0.0  # strength of rotations and crops, on latents
    geometry_share: float = 0.25  # of a batch
    erased_share: float = 0.1  # of a batch: a rectangle of another picture's latents
    orth: float = 0.1
    neg: float = 0.02  # against being sure where there is no mark
    crops: int = 0  # images of a batch that go through an autoencoder
    crop: int = 32  # latents a side of what goes through
    pixel: float = 0.1  # of the squared error that delta really makes, over the one that was asked for
    attacks: dict[str, float] = field(default_factory=dict)  # on crops; name -> highest strength
    attacked_share: float = 0.5  # of the crops' steps

    def __post_init__(self) -> None:
        for name in self.attacks:
            if name not in ATTACKS:
                raise ValueError(f"unknown attack {name!r}; there are {', '.join(ATTACKS)}")
        if self.repeats < 1 or self.batch % self.repeats or self.batch // self.repeats < 2:
            raise ValueError(f"a batch of {self.batch} is no {self.repeats} times two secrets or more")
        if not 0 <= self.crops <= self.batch:
            raise ValueError(f"crops ({self.crops}) are images of a batch ({self.batch})")


@dataclass(frozen=True)
class FamilyConfig:
    """A run of `diffmark train family`."""

    codec: CodecConfig = field(default_factory=CodecConfig)
    channel: StageConfig = field(default_factory=StageConfig)
    round_trip: StageConfig = field(default_factory=StageConfig)
    every: int = 5  # one picture of so many is held out
    validation: int = 48  # photographs set apart from the training ones to choose the best codec
    clip: float = 1.0
    log_every: int = 20
    save_every: int = 100
    seed: int = 0
    guard: GuardConfig = field(default_factory=lambda: GuardConfig(after=600))

    def __post_init__(self) -> None:
        if self.codec.injection.mode != "final":
            raise ValueError(
                f"a family is trained for injection mode 'final', not {self.codec.injection.mode!r}"
            )
        if self.save_every % self.log_every:
            raise ValueError("save_every must be a multiple of log_every")


def read_family_config(path: str | Path) -> FamilyConfig:
    """A run file as a FamilyConfig."""
    return from_dict(_read_tables(Path(path)), FamilyConfig, str(path))


@dataclass(frozen=True)
class Ground:
    """What a family is trained on."""

    latents: Tensor  # of photographs, (N, C, h / 2, w / 2); hosts are mosaics of them
    channel: Channel
    autoencoders: Sequence[nn.Module]  # crops go through them in turn


def delta_of(codec: Codec, secrets: Tensor, channel: Channel, psnr: float) -> Tensor:
    """delta without the encoder's noise, at the strength of a predicted PSNR."""
    return channel.scaled(codec.encoder.distribution(secrets)[0], psnr)


def strength_of(stage: StageConfig, step: int) -> float:
    """The PSNR in dB that delta is scaled to at a step."""
    return curriculum.ramp(step, stage.psnr_start, stage.psnr_end, stage.psnr_steps)


def stage_terms(
    codec: Codec, config: FamilyConfig, stage: StageConfig, ground: Ground, step: int, chance: Chance
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The losses of one step with their weights, and figures worth logging."""
    count = stage.batch
    drawn = chance.secrets(count // stage.repeats, codec.config.length)
    psnr = strength_of(stage, step)
    made = delta_of(codec, drawn, ground.channel, psnr)
    secrets, delta = drawn.repeat(stage.repeats, 1), made.repeat(stage.repeats, 1, 1, 1)
    hosts = draw_hosts(ground.latents[config.validation :], chance, count)
    seen = hosts + ground.channel.received(delta, chance)
    terms: dict[str, Tensor] = {}
    figures: dict[str, Tensor] = {"psnr_asked": torch.tensor(psnr)}
    through = stage.crops
    if through:
        spliced, error, name = _round_trip(
            hosts[:through], delta[:through], seen[:through], stage, ground, step, chance
        )
        seen = torch.cat([spliced, seen[through:]])
        terms["pixel"] = stage.pixel * error / (4 / 10 ** (psnr / 10))
        figures["psnr_crops"] = 10 * torch.log10(4 / error.detach())
    seen = _disturb(seen, stage, chance)
    logits = codec.decoder(seen)
    terms["bits"] = losses.cross_entropy(logits, secrets)
    if stage.orth:
        terms["orth"] = stage.orth * losses.orthogonality(made, squared=True)
    if stage.neg:
        terms["neg"] = stage.neg * losses.negative_entropy(codec.decoder(hosts[: count // 4]))
    figures |= {
        "accuracy": losses.bit_accuracy(logits, secrets).mean(),
        "deviation": losses.deviation(delta).mean(),
    }
    if through:
        figures[f"accuracy_{name}"] = losses.bit_accuracy(logits[:through], secrets[:through]).mean()
    return terms, figures


def _disturb(seen: Tensor, stage: StageConfig, chance: Chance) -> Tensor:
    """Rotation and crop of the last images, erased rectangles in the first, noise on all; on latents."""
    count = len(seen)
    erased = round(stage.erased_share * count)
    if erased:
        seen = torch.cat([_erase(seen[:erased], seen[-erased:].detach(), chance), seen[erased:]])
    moved = round(stage.geometry_share * count) if stage.geometry else 0
    if moved:
        seen = torch.cat([seen[:-moved], shift_geometry(seen[-moved:], stage.geometry, chance)])
    return seen + stage.noise * chance.normal(*seen.shape)


def _erase(seen: Tensor, others: Tensor, chance: Chance) -> Tensor:
    height, width = seen.shape[-2:]
    side = 0.25 + 0.25 * chance.uniform()
    rows, columns = round(side * height), round(side * width)
    top, left = int(chance.indices(1, height - rows + 1)), int(chance.indices(1, width - columns + 1))
    mask = torch.zeros(1, 1, height, width)
    mask[..., top : top + rows, left : left + columns] = 1
    return torch.where(mask > 0, others, seen)


def _round_trip(
    hosts: Tensor,
    delta: Tensor,
    seen: Tensor,
    stage: StageConfig,
    ground: Ground,
    step: int,
    chance: Chance,
) -> tuple[Tensor, Tensor, str]:
    """`seen` with a crop that has really been through pixels; the mark's squared error there; the attack's name."""
    autoencoder = ground.autoencoders[step % len(ground.autoencoders)]
    height, width = hosts.shape[-2:]
    top, left = (
        int(chance.indices(1, height - stage.crop + 1)),
        int(chance.indices(1, width - stage.crop + 1)),
    )
    window = (..., slice(top, top + stage.crop), slice(left, left + stage.crop))
    marked = vae.decode(autoencoder, hosts[window] + delta[window])
    with torch.no_grad():
        clean = vae.decode(autoencoder, hosts[window])
    error = (marked - clean).square().mean()
    name = "none"
    if stage.attacks and chance.uniform() < stage.attacked_share:
        name = chance.choose(list(stage.attacks), 1)[0]
        marked = robustness.attack(name, marked, stage.attacks[name] * chance.uniform(), chance.generator)
    z = vae.encode(autoencoder, robustness.round_to_bytes(marked))
    inner = (..., slice(top + RIM, top + stage.crop - RIM), slice(left + RIM, left + stage.crop - RIM))
    spliced = seen.clone()
    spliced[inner] = z[..., RIM:-RIM, RIM:-RIM]
    return spliced, error, name


@torch.no_grad()
def validate(codec: Codec, config: FamilyConfig, stage: StageConfig, ground: Ground) -> float:
    """Bit accuracy at the stage's last strength, on hosts that are not trained on.

    Through the channel, or for a stage of round trips through each autoencoder, as they are and attacked in turn.
    """
    training = codec.training
    codec.eval()
    right = []
    whole = replace(stage, crop=codec.config.height)
    ways = [replace(whole, attacked_share=share) for share in (0.0, 1.0)]
    for number in range((THROUGH if stage.crops else VALIDATED) // 4):
        chance = Chance(config.seed, 2**31, number)
        part = draw_hosts(ground.latents[: config.validation], chance, 4, roll=False)
        secrets = chance.secrets(len(part), codec.config.length)
        delta = delta_of(codec, secrets, ground.channel, stage.psnr_end)
        seen = part + ground.channel.received(delta, chance)
        if stage.crops:
            seen, _, _ = _round_trip(part, delta, seen, ways[number % 2], ground, number // 2, chance)
        logits = codec.decoder(seen)
        right.append((logits.argmax(dim=-1) == secrets).float().mean(dim=1))
    codec.train(training)
    return float(torch.cat(right).mean())


@torch.no_grad()
def finished(codec: Codec, ground: Ground, psnr: float, provenance: dict[str, Any]) -> Codec:
    """The codec as it is used: every delta has the mean deviation that this PSNR asks for."""
    codec.eval()
    delta = delta_of(codec, Chance(0, 0).secrets(SECRETS, codec.config.length), ground.channel, psnr)
    copy = Codec(
        replace(codec.config, deviation=round(float(losses.deviation(delta).mean()), 5)), None, provenance
    )
    copy.load_state_dict(codec.state_dict())
    codec.train()
    return copy.eval()


def train_stage(
    name: str,
    config: FamilyConfig,
    ground: Ground,
    folder: str | Path,
    codec: Codec | None = None,
    accelerator: Accelerator | None = None,
    stop_after: int | None = None,
) -> Codec:
    """One stage in `folder`, from its last checkpoint if it has one; returns the best codec.

    Without a `codec` to go on from it starts as a spread-spectrum code. `stop_after` ends a session early.
    """
    stage: StageConfig = getattr(config, name)
    accelerator = accelerator or make_accelerator("fp32", cpu=True)
    torch.manual_seed(config.seed)
    trained, start = Codec(config.codec), time.monotonic()
    if codec is None and config.codec.matched_filter:
        hosts = draw_hosts(ground.latents[config.validation :], Chance(config.seed, 2**30), MATCHED)
        start_matched(trained, hosts, ground.channel, stage.psnr_end)
    elif codec is None:
        start_spread(trained)
    else:
        trained.load_state_dict(codec.state_dict())
    for autoencoder in ground.autoencoders:
        autoencoder.requires_grad_(False).eval()
    optimiser = Optimiser(
        trained, accelerator, (stage.encoder_rate, stage.decoder_rate), (config.clip, config.clip)
    )
    run = Run(folder, config, accelerator)
    guard, meter = CollapseGuard(config.guard), Meter()
    first, best = 0, -1.0
    if (loaded := run.load()) is not None:
        shared, own = loaded
        first, best = shared["step"], shared["best"]
        start -= shared["seconds"]
        trained.load_state_dict(shared["codec"])
        optimiser.load_state_dict(shared["optimiser"])
        guard.load_state_dict(own["guard"])

    def keep_best(step: int, validated: float) -> None:
        made = {
            "stage": name,
            "step": step,
            "validated": round(validated, 4),
            "psnr_asked": stage.psnr_end,
            "seconds": round(time.monotonic() - start),
            "threads": torch.get_num_threads(),
        }
        finished(trained, ground, stage.psnr_end, made).save_pretrained(Path(folder) / "best")

    run.start_log(first or -1)  # the start is logged again where nothing was kept of a run
    if not first:
        best = validate(trained, config, stage, ground)
        keep_best(0, best)
        run.log(0, {"validated": best})
    last = stage.steps if stop_after is None else min(stage.steps, first + stop_after)
    trained.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    for step in tqdm(range(first, last), name, initial=first, total=stage.steps, disable=None):
        optimiser.set_rates(step, stage.warmup, stage.steps, stage.final_rate)
        terms, figures = stage_terms(trained, config, stage, ground, step, Chance(config.seed, step))
        loss = sum(terms.values(), torch.zeros(()))
        optimiser.backward(loss)
        norms = optimiser.update()
        values = meter.add({"loss": loss, **{f"loss_{k}": v for k, v in terms.items()}, **figures, **norms})
        check_finite(step, {key: value for key, value in values.items() if key.startswith("loss")})
        guard.check(step, values["accuracy"], values["deviation"])
        done = step + 1
        if done % config.log_every == 0 or done == last:
            line = meter.means()
            if done % config.save_every == 0 or done == last:
                line["validated"] = validate(trained, config, stage, ground)
                if line["validated"] > best:
                    best = line["validated"]
                    keep_best(done, best)
                state = {
                    "codec": trained.state_dict(),
                    "optimiser": optimiser.state_dict(),
                    "best": best,
                    "seconds": time.monotonic() - start,
                }
                run.save(done, state, {"guard": guard.state_dict()})
            run.log(done, line)
    run.close()
    return Codec.from_pretrained(Path(folder) / "best")


def record(folder: Path) -> dict[str, Any]:
    """What a stage in `folder` came to: its best codec, what all of it took, and its log from the start on."""
    best = Codec.from_pretrained(folder / "best").provenance
    last = max(
        (folder / "checkpoints").glob("step-*"), default=None
    )  # none where a start is all that was asked
    seconds = torch.load(last / "shared.pt", weights_only=True)["seconds"] if last else best["seconds"]
    return {
        "best": best,
        "seconds": round(seconds),
        "log": [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()],
    }
