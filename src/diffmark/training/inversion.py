"""Training of a `NoiseReader`: the frozen pipeline paints from known noise, the reader learns to tell which.

First pairs are made and kept: initial noise z_T, and latents of the picture that a pipeline paints from it, as they
are read from an 8-bit file, after an attack on pixels, and after regeneration by the frozen denoiser, once and
twice. Many pairs come over the bridge, the latent consistency model in four deterministic steps, which costs a
seventh. Nothing is marked: where patterns of unknown keys are noise, unmarked pictures teach all that there is.

Then the reader is trained to estimate z_T from any of them, by squared error: where a picture does not tell, the
estimate is zero, and correlation with a pattern weighs a place by how much is known there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from diffmark.latent import bridge
from diffmark.latent.codec import NoiseCodec
from diffmark.latent.config import NoiseConfig
from diffmark.latent.device import find_device
from diffmark.latent.dosing import Dosing
from diffmark.latent.injection import Injection
from diffmark.latent.vae import check_family, decode, encode
from diffmark.mark.loading import load_pipeline
from diffmark.training.config import ModelConfig
from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train_network
from diffmark.training.paths import freeze, read_prompts
from diffmark.training.robustness import ATTACKS, attack, round_to_bytes

COMMON_PAIRS = 500  # on which it is measured what estimates have in common
BATCH = 16  # pairs that are made at once, and kept in one file
VIEWS = ("read", "attacked", "regenerated", "rinsed")


@dataclass(frozen=True)
class PairsConfig:
    """How pairs of noise and pictures are made."""

    pipeline: int = 2000  # pairs that the pipeline paints
    bridge: int = 4000  # pairs that the latent consistency model paints
    prompts: str = ""  # a file with one prompt a line; empty takes the embedded family's captions
    steps: tuple[int, ...] = (12, 16, 22)  # of the pipeline, in turn
    guidance: tuple[float, ...] = (4.0, 4.0, 3.0, 5.0)
    bridge_steps: int = 4
    attacks: tuple[str, ...] = ("jpeg", "noise", "brightness", "contrast", "blur", "erasing")
    compression: str = ""  # a learned compression besides: `vista`
    times: tuple[int, int] = (40, 230)  # noising of one regeneration, of 1000
    rinse_times: tuple[int, int] = (20, 130)  # of each of two
    regeneration_steps: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.attacks) - set(ATTACKS))
        if unknown:
            raise ValueError(f"attacks: there is no {unknown[0]!r}; there are {', '.join(ATTACKS)}")
        if self.compression not in ("", "vista"):
            raise ValueError(f"compression is vista, or left out; got {self.compression!r}")
        if min(self.pipeline, self.bridge) < 0 or self.pipeline + self.bridge < 2 * BATCH:
            raise ValueError(f"at least {2 * BATCH} pairs are needed, and none of a kind fewer than 0")


@dataclass(frozen=True)
class InversionConfig:
    """A run of `diffmark train noise`."""

    loop: LoopConfig
    model: ModelConfig
    codec: NoiseConfig
    pairs: PairsConfig = field(default_factory=PairsConfig)
    dose: float = 0.7
    held_out: int = 64  # pairs of the pipeline, the first ones, for measuring
    noise: float = 0.08  # standard deviation, at most, of what is added to latents


# --- pairs -------------------------------------------------------------------------------------------------------


class PairMaker:
    """Paints pictures from known noise with frozen models."""

    def __init__(self, config: InversionConfig, device: str = "cpu") -> None:
        self.config, self.device = config, device
        self.pipe = load_pipeline(config.model.pipeline, device)
        self.lcm = load_pipeline(config.model.lcm, device) if config.model.lcm else None
        for part in (self.pipe.unet, self.pipe.vae, *([self.lcm.unet] if self.lcm else [])):
            freeze(part.float())
        check_family(config.codec, self.pipe.vae)
        self.compress = _compression(config.pairs.compression, device)
        self.empty = self._embedded(self.pipe, [""])

    @torch.no_grad()
    def make(self, kind: str, number: int, prompts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Batch `number` of a kind: z_T (B, C, h, w), and its pictures' latents in every view, (B, V, C, h, w)."""
        pairs = self.config.pairs
        draws = Draws(pairs.seed, number, ("pipeline", "bridge").index(kind), self.device)
        shape = (len(prompts), self.config.codec.channels, self.config.codec.height, self.config.codec.width)
        noise = draws.normal(*shape)
        guidance = pairs.guidance[number % len(pairs.guidance)]
        if kind == "bridge":
            z0 = self._over_bridge(noise, prompts, guidance)
        else:
            z0 = self._painted(noise, prompts, pairs.steps[number % len(pairs.steps)], guidance)
        pixels = round_to_bytes(decode(self.pipe.vae, z0))
        read = encode(self.pipe.vae, pixels)
        views = [read, self._attacked(pixels, draws), self._regenerated(read, draws, pairs.times, 1)]
        views.append(self._regenerated(read, draws, pairs.rinse_times, 2))
        return noise.half().cpu().numpy(), torch.stack(views, 1).half().cpu().numpy()

    def _embedded(self, pipe: Any, prompts: list[str]) -> Tensor:
        return pipe.encode_prompt(prompts, torch.device(self.device), 1, False)[0].detach()

    def _painted(self, noise: Tensor, prompts: list[str], steps: int, guidance: float) -> Tensor:
        """z0 as the pipeline's DDIM sampler paints it."""
        embeddings = self._embedded(self.pipe, prompts)
        denoise = bridge.denoiser_of(
            self.pipe.unet, self.pipe.scheduler, embeddings, empty=self.empty, guidance=guidance
        )
        trajectory = bridge.sampler_trajectory(self.pipe.scheduler, steps)
        return bridge.ddim_path(denoise, noise, None, [0.0] * (steps + 1), trajectory)

    def _over_bridge(self, noise: Tensor, prompts: list[str], guidance: float) -> Tensor:
        """z0 of the consistency model, without new noise between its steps: z_T alone decides."""
        lcm, steps = self.lcm, self.config.pairs.bridge_steps
        if lcm is None:
            raise ValueError("pairs.bridge asks for a latent consistency model: give model.lcm")
        condition = None
        if lcm.unet.config.time_cond_proj_dim is not None:
            w = torch.full((len(noise),), guidance - 1)
            width = lcm.unet.config.time_cond_proj_dim
            condition = lcm.get_guidance_scale_embedding(w, embedding_dim=width).to(self.device)
        embeddings = self._embedded(lcm, prompts)
        consistent = bridge.denoiser_of(lcm.unet, lcm.scheduler, embeddings, timestep_cond=condition)
        trajectory = bridge.sampler_trajectory(lcm.scheduler, steps)
        scaling, z = float(lcm.scheduler.config.timestep_scaling), noise
        for k, timestep in enumerate(trajectory.timesteps):
            x0, _ = consistent(z, timestep)
            x0 = bridge.consistency(z, x0, timestep, scaling)
            abar = trajectory.abar[k]
            left = (z - abar**0.5 * x0) / (1 - abar) ** 0.5
            z = bridge.ddim_step(x0, left, trajectory.abar[k + 1]) if k < steps - 1 else x0
        return z

    def _attacked(self, pixels: Tensor, draws: Draws) -> Tensor:
        """Latents of pictures after attacks on pixels, another one for each quarter of the batch."""
        names = [*self.config.pairs.attacks, *(["compression"] if self.compress else [])]
        found = []
        for part in pixels.chunk(4):
            name = names[int(draws.indices(1, len(names)))]
            if name == "compression" and self.compress is not None:
                changed = self.compress(part, part.new_full((len(part),), 1 + 6 * draws.uniform()))[0]
            else:
                changed = attack(name, part, 0.2 + 0.8 * draws.uniform(), draws.torch)
            found.append(encode(self.pipe.vae, round_to_bytes(changed)))
        return torch.cat(found)

    def _regenerated(self, z0: Tensor, draws: Draws, times: tuple[int, int], rounds: int) -> Tensor:
        """Noised to a drawn time and denoised without a prompt, `rounds` times; another time for each half."""
        total, steps = self.pipe.scheduler.config.num_train_timesteps, self.config.pairs.regeneration_steps
        found = []
        for part in z0.chunk(2):
            time = times[0] + int(draws.indices(1, times[1] - times[0]))
            trajectory = bridge.late_trajectory(self.pipe.scheduler, steps, time / total)
            empty = self.empty.expand(len(part), -1, -1)
            denoise = bridge.denoiser_of(self.pipe.unet, self.pipe.scheduler, empty)
            z = part
            for _ in range(rounds):
                noisy = bridge.noised(z, draws.normal(*z.shape), trajectory.abar[0])
                z = bridge.ddim_path(denoise, noisy, None, [0.0] * (steps + 1), trajectory)
            found.append(z)
        return torch.cat(found)


def _compression(name: str, device: str) -> Any:
    """A learned codec (pixels, quality) -> (pixels, ...), or none."""
    if not name:
        return None
    from diffmark.vista import load_compression

    return load_compression().requires_grad_(False).to(device)


def make_pairs(config: InversionConfig, folder: Path, share: str = "1/1") -> list[Path]:
    """Files of all pairs, those of the pipeline first; what is there is kept. `share` i/n makes only a part."""
    number, parts = (int(value) for value in share.split("/"))
    prompts = read_prompts(config.pairs.prompts, None) if config.pairs.prompts else None
    counts = {"pipeline": config.pairs.pipeline, "bridge": config.pairs.bridge}
    wanted = [
        (kind, batch, folder / f"{kind}-{batch:05d}.npz")
        for kind, count in counts.items()
        for batch in range(count // BATCH)
    ]
    missing = [item for item in wanted[number - 1 :: parts] if not item[2].is_file()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        maker = PairMaker(config, find_device())
        for kind, batch, path in tqdm(missing, "painting from known noise", disable=None):
            said = _prompts(prompts, batch)
            partial = path.with_suffix(".partial.npz")
            noise, latents = maker.make(kind, batch, said)
            np.savez(partial, noise=noise, latents=latents)
            partial.replace(path)
    return [path for *_, path in wanted if path.is_file()]


def _prompts(prompts: list[str] | None, batch: int) -> list[str]:
    """Prompts of a batch; captions of painted scenes where there is no file of prompts."""
    numbers = range(batch * BATCH, (batch + 1) * BATCH)
    if prompts is not None:
        return [prompts[number % len(prompts)] for number in numbers]
    from diffmark.vista.scenes import caption, random_scene

    return [caption(random_scene(number)) for number in numbers]


# --- training ----------------------------------------------------------------------------------------------------


class InversionJob:
    """Estimates of z_T from latents in a drawn view."""

    SHARES = (1, 1, 2, 2)  # how often each of VIEWS is drawn

    def __init__(self, config: InversionConfig, codec: NoiseCodec, noise: Tensor, latents: Tensor) -> None:
        self.config, self.model = config, codec.decoder
        self.noise, self.latents = noise, latents  # (N, C, h, w), (N, V, C, h, w)

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        count = self.config.loop.batch
        rows = draws.indices(count, len(self.noise))
        views = torch.tensor([view for view, share in enumerate(self.SHARES) for _ in range(share)])
        views = views[draws.indices(count, len(views))]
        z0 = self.latents[rows, views].float()
        z0 = z0 + self.config.noise * draws.uniforms(count, 1, 1, 1) * draws.normal(*z0.shape)
        device = next(self.model.parameters()).device
        estimate = self.model(z0.to(device).contiguous(memory_format=torch.channels_last))
        wanted = self.noise[rows].float().to(device)
        figures = {"cosine": F.cosine_similarity(estimate.flatten(1), wanted.flatten(1)).mean()}
        return F.mse_loss(estimate, wanted), figures


def load_pairs(paths: list[Path]) -> tuple[Tensor, Tensor]:
    """z_T (N, C, h, w) and latents (N, V, C, h, w), in half precision."""
    files = [np.load(path) for path in paths]
    noise, latents = (np.concatenate([file[name] for file in files]) for name in ("noise", "latents"))
    return torch.from_numpy(noise), torch.from_numpy(latents)


def train_reader(
    config: InversionConfig, folder: Path, pairs: Path, stop_after: int | None = None
) -> NoiseCodec:
    """Train a reader in `folder` on the pairs in `pairs`, from the last checkpoint if there is one."""
    paths = make_pairs(config, pairs)
    held_out = -(-config.held_out // BATCH)
    noise, latents = load_pairs(paths[held_out:])
    torch.manual_seed(config.loop.seed)
    codec = NoiseCodec(config.codec, Dosing(Injection("initial", config.dose)))
    job, cpu = InversionJob(config, codec, noise, latents), find_device() == "cpu"
    weights, complete = train_network(job, config.loop, folder, stop_after, cpu)
    codec.cpu()
    codec.decoder.load_state_dict(weights)
    leave_out_common(codec, latents[:COMMON_PAIRS])
    codec.provenance = {"steps": config.loop.steps, "complete": complete, "pairs": len(noise)}
    codec.provenance |= {"measured": measure_reader(codec, *load_pairs(paths[:held_out]))}
    codec.save_pretrained(folder / "codec")
    return codec


@torch.no_grad()
def leave_out_common(codec: NoiseCodec, latents: Tensor) -> None:
    """What the estimates of views (N, V, C, h, w) of unmarked pictures have in common."""
    codec.eval()
    parts = latents.flatten(0, 1).split(BATCH)
    estimates = torch.cat([codec.decoder.estimate(part.float()) for part in parts])
    codec.leave_out_common(estimates)


@torch.no_grad()
def measure_reader(codec: NoiseCodec, noise: Tensor, latents: Tensor) -> dict[str, float]:
    """Cosine between z_T and its estimate in every view."""
    codec.eval()
    found = {}
    for view, name in enumerate(VIEWS):
        estimates = torch.cat([codec.decode(part.float()) for part in latents[:, view].split(BATCH)])
        cosine = F.cosine_similarity(estimates.flatten(1), noise.float().flatten(1))
        found[name] = round(float(cosine.mean()), 4)
    return found
