"""What a training step costs with a fresh DDIM path every step, and with replay; and what the decoder makes of it.

    python benchmarks/training_replay.py --out results/training_replay.json

A tiny Stable Diffusion (diffusers' classes, random weights) stands in for the denoiser: the ratio of denoiser calls
is what it is for any model. Both runs train the same codec on the same draws, alternating in blocks so that a busy
machine slows both alike; accuracy is read from fresh DDIM latents that neither run was trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from conftest import _build, _embeds

from diffmark.latent.codec import Codec
from diffmark.latent.config import CodecConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.injection import Injection
from diffmark.provenance import provenance
from diffmark.training import losses
from diffmark.training.config import DeltaConfig, GateConfig, PathConfig, TrainingConfig, WeightConfig
from diffmark.training.draws import Draws
from diffmark.training.dual import sigma_of, step_terms, weights_of
from diffmark.training.optimisation import Optimiser, make_accelerator
from diffmark.training.paths import Denoisers, Paths, freeze
from diffmark.training.pretraining import perturb
from diffmark.training.replay import Replay

UNSEEN = 2**31


class Trainer:
    """A codec in training, and the seconds it has used."""

    def __init__(self, config: TrainingConfig, models: Denoisers) -> None:
        self.config, self.paths = config, Paths(config, denoisers=models)
        torch.manual_seed(0)
        self.codec = Codec(config.codec).train()
        self.optimiser = Optimiser(self.codec, make_accelerator("fp32", cpu=True), (1e-3, 1e-3))
        self.replay = Replay(config.paths.replay) if config.paths.replay else None
        self.seconds = 0.0

    def run(self, steps: range, vae: torch.nn.Module, batch: int) -> None:
        begun = time.perf_counter()
        for step in steps:
            terms, _ = step_terms(
                self.codec, vae, self.paths, self.config, step, Draws(0, step), batch, self.replay
            )
            weights = weights_of(self.config, step)
            self.optimiser.backward(sum((weights[n] * t for n, t in terms.items()), torch.zeros(())))
            self.optimiser.update()
        self.seconds += time.perf_counter() - begun

    @torch.no_grad()
    def accuracy(self, step: int, batch: int, batches: int = 8) -> float:
        """Bit accuracy on fresh latents of the DDIM path."""
        self.codec.eval()
        found = []
        for number in range(batches):
            draws = Draws(0, UNSEEN, number)
            secrets = draws.secrets(batch, self.codec.config.length)
            made = perturb(self.codec.encoder, secrets, draws, self.config.delta, sigma_of(self.config, step))
            z0 = self.paths.ddim(self.paths.draw(draws, batch), made.delta)
            found.append(losses.bit_accuracy(self.codec.decoder(z0), secrets).mean())
        self.codec.train()
        return float(torch.stack(found).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block", type=int, default=20, help="steps before the other run has its turn")
    parser.add_argument("--refresh-every", type=int, default=10)
    parser.add_argument("--replay", type=int, default=128)
    parser.add_argument("--ddim-steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    codec = CodecConfig(
        length=16, height=8, width=8, embed_dim=16, decoder_widths=(16, 32), decoder_hidden=(64,)
    )
    fresh = TrainingConfig(
        codec=codec,
        dosing=Dosing(Injection("persistent")),
        paths=PathConfig(steps=4, ddim_steps=arguments.ddim_steps, guidance=3.0),
        gates=GateConfig(imperceptibility=-1, frequency=-1),
        weights=WeightConfig(mag=0, kl_start=0, kl_end=0),
        delta=DeltaConfig(normalise=True, variational=False, sigma_start=1.0, sigma_end=1.0),
    )
    replayed = replace(
        fresh,
        paths=replace(fresh.paths, replay=arguments.replay, refresh_every=arguments.refresh_every),
    )
    sd, lcm = _build("sd").pipe, _build("lcm").pipe
    for network in (sd.unet, sd.vae, lcm.unet):
        freeze(network)
    models = Denoisers(sd.unet, sd.scheduler, _embeds(1, 32, 7, 32), _embeds(2, 1, 7, 32), lcm)
    trainers = {"fresh": Trainer(fresh, models), "replay": Trainer(replayed, models)}
    rows = []
    for first in range(0, arguments.steps, arguments.block):
        steps = range(first, min(first + arguments.block, arguments.steps))
        for trainer in trainers.values():
            trainer.run(steps, sd.vae, arguments.batch)
        if steps.stop % (5 * arguments.block) == 0 or steps.stop == arguments.steps:
            row = {"step": steps.stop}
            for name, trainer in trainers.items():
                row[f"{name}_accuracy"] = round(trainer.accuracy(steps.stop, arguments.batch), 4)
                row[f"{name}_seconds_a_step"] = round(trainer.seconds / steps.stop, 4)
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    cost = rows[-1]["fresh_seconds_a_step"] / rows[-1]["replay_seconds_a_step"]
    settings = {"fresh": asdict(fresh), "replay": asdict(replayed)}
    document = {**provenance(" ".join(["python", *sys.argv]), settings), "seed": 0, "rows": rows}
    document["fresh_over_replay_cost"] = round(cost, 2)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
