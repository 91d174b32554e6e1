"""The settings of codec training, as run files give them.

The defaults are the paper's tables (training hyperparameters, loss weights). Fields that it does not have say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from diffmark.latent.config import CodecConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.injection import Injection
from diffmark.training import curriculum
from diffmark.training.robustness import ATTACKS
from diffmark.training.run_file import read_run_file

PRECISIONS = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class ModelConfig:
    """The frozen models: a name of the embedded family, a folder, or a hub id."""

    vae: str = ""  # its own folder, or that of a pipeline; empty takes the pipeline's
    pipeline: str = ""  # whose denoiser the mark goes through; not needed for injection mode final
    lcm: str = ""  # the latent consistency model of the bridge


@dataclass(frozen=True)
class DataConfig:
    """What latents are made of: prompts where a path starts at noise, pictures where it starts at latents."""

    prompts: str = ""  # a file with one prompt a line
    pictures: str = ""  # a folder of images, or `vista` for painted scenes
    count: int = 4000  # pictures at most


@dataclass(frozen=True)
class OptimiserConfig:
    """AdamW with a rate and a clipping norm for each network."""

    steps: int = 10_000
    batch: int = 16  # images a step, over all processes and accumulated parts
    accumulation: int = 1  # parts that a process computes one after the other
    encoder_rate: float = 5e-5
    decoder_rate: float = 3e-4
    warmup: int = 500
    final_rate: float = 1e-6
    weight_decay: float = 0.01
    clip_encoder: float = 5.0
    clip_decoder: float = 1.0
    precision: str = "fp32"
    frozen_norms: bool = False  # not in the paper: batch norms keep the statistics that they start with

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.steps < 1 or self.batch < 2 or self.accumulation < 1 or self.batch % self.accumulation:
            raise ValueError(
                f"steps {self.steps}, batch {self.batch}, accumulation {self.accumulation}: "
                "there must be a step, two images, and as many in each accumulated part"
            )


@dataclass(frozen=True)
class DeltaConfig:
    """Strength of delta over the run."""

    sigma_start: float = 0.10
    sigma_end: float = 0.05
    horizon: int = 5000  # T_a
    normalise: bool = False  # not in the paper: every delta has exactly sigma_target, L_mag is then zero
    variational: bool = True  # False trains delta = alpha * mu, without the encoder's noise


@dataclass(frozen=True)
class GateConfig:
    """Steps at which groups of losses open; negative is never."""

    reconstruction: int = 0  # tau_rec
    imperceptibility: int = 500  # tau_imp
    robustness: int = -1  # tau_rob
    frequency: int = 0  # L_freq has its own: active from step 0 in the paper's table

    def __post_init__(self) -> None:
        curriculum.check_order(self.reconstruction, self.imperceptibility, self.robustness)


@dataclass(frozen=True)
class WeightConfig:
    """w_i of each loss."""

    lcm: float = 1.0
    ddim: float = 1.0
    mag: float = 5.0
    kl_start: float = 0.001
    kl_end: float = 0.05
    kl_warmup: int = 1000
    orth: float = 0.1
    prvl: float = 1.5
    lafid: float = 0.1
    freq: float = 0.5
    neg: float = 0.01
    regen: float = 1.0
    robust: float = 1.0  # not in the paper: cross-entropy after an attack on pixels
    regen_diff: float = 0.0  # not in the paper: cross-entropy after noising and denoising
    percep: float = 0.0  # not in the paper: visible difference of marked and clean pictures
    natural: float = 0.0  # not in the paper: difference of their statistics


@dataclass(frozen=True)
class PathConfig:
    """The differentiable bridge and the detached DDIM path."""

    steps: int = 4  # K of the bridge
    bridge_injection: Injection | None = (
        None  # of the bridge alone; None is the codec's, which inference uses
    )
    ddim_injection: Injection | None = None  # of the DDIM path alone: in Algorithm 2 delta / N, mode `mean`
    guidance: float = 8.5  # diffusers' scale, w + 1, of LCM and DDIM path
    checkpointing: bool = True
    ddim_steps: int = 50  # N; 0 leaves the DDIM path out
    replay: int = 0  # not in the paper: (z0, secret) pairs kept for replay; 0 makes every pair anew
    refresh_every: int = 1  # not in the paper: steps between fresh batches for the replay
    regen_on: str = "ddim"  # latents of L_regen: ddim (decoder only), or bridge (the encoder learns it too)
    decoded: float = (
        1.0  # not in the paper: share of a batch that is compared with its clean path and decoded
    )
    rounding: bool = False  # not in the paper: the round trip of L_regen rounds to 8 bits
    squared_orth: bool = False  # not in the paper: L_orth on squared cosines
    region: int = 32  # side in pixels of L_prvl's regions
    radius: float = 10.0  # of L_freq's disk

    def __post_init__(self) -> None:
        if self.regen_on not in ("ddim", "bridge"):
            raise ValueError(f"regen_on is ddim or bridge, got {self.regen_on!r}")
        if not 0 < self.decoded <= 1:
            raise ValueError(f"decoded is a share of the batch in (0, 1], got {self.decoded}")
        if self.refresh_every < 1 or (self.refresh_every > 1 and not self.replay):
            raise ValueError(f"refresh_every {self.refresh_every} needs a replay buffer (replay > 0)")


@dataclass(frozen=True)
class RobustnessConfig:
    """Attacks on pixels between decode and re-encode, from the gate tau_rob on."""

    attacks: dict[str, float] = field(default_factory=dict)  # name -> highest strength in (0, 1]
    strength_start: float = 0.1  # share of that strength at the gate; after the warm-up it is 1
    warmup: int = 1000
    share_start: float = 0.25  # share of a batch that is attacked at the gate ...
    share_end: float = 0.5  # ... and after the warm-up
    kinds: int = 1  # different attacks a step

    def __post_init__(self) -> None:
        for name, strength in self.attacks.items():
            if name not in ATTACKS:
                raise ValueError(f"unknown attack {name!r}; there are {', '.join(ATTACKS)}")
            if not 0 < strength <= 1:
                raise ValueError(f"the highest strength of {name} lies in (0, 1], got {strength}")


@dataclass(frozen=True)
class RegenerationConfig:
    """Noising and denoising by the frozen denoiser between writer and reader, where weights.regen_diff is not 0."""

    times: tuple[int, ...] = (60, 100, 140, 200)  # timesteps, one drawn a step
    steps: int = 2  # of DDIM back to the image
    rounds: int = 1  # in a row, at most; a number up to it is drawn a step
    share: float = 0.5  # of a batch

    def __post_init__(self) -> None:
        if (
            not self.times
            or min(self.times) < 1
            or self.steps < 1
            or self.rounds < 1
            or not 0 < self.share <= 1
        ):
            raise ValueError(
                f"times {self.times}, steps {self.steps}, rounds {self.rounds}, share {self.share}: there must be "
                "a timestep above 0, a step, a round, and a share in (0, 1]"
            )


@dataclass(frozen=True)
class CompressionConfig:
    """A learned image codec between writer and reader, for a share of the pictures of L_regen."""

    model: str = ""  # `vista`: the embedded family's compression autoencoder
    share: float = 0.0
    qualities: tuple[float, float] = (1.0, 7.0)  # one drawn a step, harshest first

    def __post_init__(self) -> None:
        if bool(self.model) != bool(self.share) or not 0 <= self.share <= 1:
            raise ValueError(
                f"compression: model {self.model!r}, share {self.share}: give both or none; share is at most 1"
            )
        if self.model not in ("", "vista"):
            raise ValueError(f"compression.model is vista, or left out; got {self.model!r}")


@dataclass(frozen=True)
class GuardConfig:
    """When a run is stopped: see `diffmark.training.guards`."""

    delta_floor: float = 1e-3  # standard deviation of delta
    chance_accuracy: float = 0.55  # mean over `window` steps ...
    after: int = 2000  # ... is not tolerated after this step
    window: int = 100


@dataclass(frozen=True)
class LogConfig:
    """How often what is written."""

    log_every: int = 20
    save_every: int = 200
    keep: int = 3
    measure_every: int = 200  # accuracy and PSNR on held-out latents, which choose the best codec
    measure_images: int = 64
    sample_every: int = 1000  # marked and clean images, difference, heat map of delta

    def __post_init__(self) -> None:
        if self.save_every % self.log_every:
            raise ValueError(
                f"save_every ({self.save_every}) must be a multiple of log_every ({self.log_every}), "
                "so that a resumed run writes the same log"
            )


@dataclass(frozen=True)
class TrainingConfig:
    """A run of `diffmark train dual`."""

    codec: CodecConfig = field(default_factory=CodecConfig)
    dosing: Dosing = field(default_factory=Dosing)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    delta: DeltaConfig = field(default_factory=DeltaConfig)
    gates: GateConfig = field(default_factory=GateConfig)
    weights: WeightConfig = field(default_factory=WeightConfig)
    paths: PathConfig = field(default_factory=PathConfig)
    robustness: RobustnessConfig = field(default_factory=RobustnessConfig)
    regeneration: RegenerationConfig = field(default_factory=RegenerationConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    log: LogConfig = field(default_factory=LogConfig)
    pretraining: PretrainingConfig = field(default_factory=lambda: PretrainingConfig())
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.gates.robustness >= 0) != bool(self.robustness.attacks):
            raise ValueError("gates.robustness and robustness.attacks go together: give both or none")
        if self.gates.robustness >= 0 > self.gates.imperceptibility:
            raise ValueError(
                "gates.robustness opens within imperceptibility: give gates.imperceptibility >= 0"
            )
        starts = {_start(injection) for injection in self.injections}
        if len(starts) > 1:
            raise ValueError(
                f"bridge, DDIM path and codec must start at the same place, got {', '.join(sorted(starts))}: "
                "paths.bridge_injection and paths.ddim_injection may differ from dosing.injection in what they add"
            )
        if self.paths.ddim_steps == 0 and (self.weights.ddim or self.paths.regen_on == "ddim"):
            raise ValueError(
                "without a DDIM path (paths.ddim_steps = 0) set weights.ddim = 0 and paths.regen_on = 'bridge'"
            )

    @property
    def injections(self) -> tuple[Injection, Injection, Injection]:
        """Of the codec, that is of inference; of the bridge; of the DDIM path."""
        own = self.dosing.injection
        return own, self.paths.bridge_injection or own, self.paths.ddim_injection or own


def _start(injection: Injection) -> str:
    """Where a path with this injection starts, in words."""
    if injection.mode == "late":
        return f"pictures noised to {injection.start:g}"
    return "pictures" if injection.mode == "final" else "pure noise"


@dataclass(frozen=True)
class PretrainingConfig:
    """A run of `diffmark train pretrain` (Algorithm 1)."""

    steps: int = 50_000
    batch: int = 64
    encoder_rate: float = 3e-4
    decoder_rate: float = 1e-4
    warmup: int = 0
    final_rate: float = 1e-6
    clean: float = 1.0  # w_r
    noisy: float = 1.0  # w_n
    orth: float = 0.1
    noise_start: float = 0.0  # sigma_n; the paper does not give its values
    noise_end: float = 1.0
    host: bool = False  # not in the paper: the noisy variant lies on latents of pictures
    geometry: float = 0.0  # not in the paper: strength of rotation and crop, on latents; 0 leaves them out
    geometry_warmup: int = 1000  # steps over which it rises
    geometry_share: float = 0.5  # of a batch
    sigma_start: float = 0.0  # not in the paper: with delta.normalise, the strength at the first ...
    sigma_end: float = 0.0  # ... and at the last step; 0 takes delta.sigma_start
    smooth_share: float = 0.0  # not in the paper: of a batch, seen through a 3 x 3 mean
    stop_accuracy: float = 0.99
    stop_after: int = 10  # consecutive steps


def read_config(path: str | Path) -> TrainingConfig:
    """A run file as a TrainingConfig."""
    return read_run_file(path, TrainingConfig)
