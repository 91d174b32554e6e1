"""What training on Stable Diffusion 1.5 takes: operations of its networks, counted, and hours on a GPU.

python benchmarks/training_cost.py

The UNet and the autoencoder are built from their published sizes without weights (on the meta device) and run under
torch's operation counter; how often a step asks for them follows from the run file. A backward pass to the input is
counted as one forward pass (weights are frozen and get no gradient), gradient checkpointing as another.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode

from diffmark.provenance import provenance
from diffmark.training.config import TrainingConfig, read_config

RATE = 1e14  # operations a second that an A100 reaches in bf16, a third of its peak
CONFIGS = ("sd15_paper", "sd15_persistent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/training_cost.json"))
    arguments = parser.parse_args()
    unet, decoding, encoding = counted()
    rows: dict[str, Any] = {"operations": {"unet": unet, "decode": decoding, "encode": encoding}}
    for name in CONFIGS:
        config = read_config(Path("configs") / f"{name}.toml")
        calls = calls_a_picture(config)
        each = calls["unet"] * unet + calls["decode"] * decoding + calls["encode"] * encoding
        total = each * config.optimiser.batch * config.optimiser.steps
        rows[name] = {
            "calls_a_picture_and_step": {part: round(value, 1) for part, value in calls.items()},
            "operations": float(f"{total:.3g}"),
            "gpu_hours": round(total / RATE / 3600, 1),
        }
    config = {"rate": RATE, "configs": list(CONFIGS)}
    document = provenance("python benchmarks/training_cost.py", config)
    arguments.out.write_text(json.dumps({**document, "results": rows}, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def counted() -> tuple[int, int, int]:
    """Operations of one UNet call, one decoding and one encoding, for a picture of 512 px."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
        )
        z, text, pixels = torch.randn(1, 4, 64, 64), torch.randn(1, 77, 768), torch.randn(1, 3, 512, 512)
        time = torch.ones((), dtype=torch.long)
        found = []
        for call in (lambda: unet(z, time, text), lambda: vae.decode(z), lambda: vae.encode(pixels)):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                call()
            found.append(counter.get_total_flops())
    return found[0], found[1], found[2]


def calls_a_picture(config: TrainingConfig) -> dict[str, float]:
    """Forward passes a picture and step once all gates are open; a backward pass counts as one."""
    paths, weights = config.paths, config.weights
    through = 3 if paths.checkpointing else 2  # forward, backward, and forward again
    clean = 2 if weights.neg else 1  # L_neg asks for the DDIM path without a mark
    unet = paths.steps * through + paths.steps + paths.ddim_steps * 2 * clean / paths.refresh_every
    if weights.regen_diff:
        settings = config.regeneration
        unet += settings.share * (1 + settings.rounds) / 2 * settings.steps * 2
    compared = bool(weights.prvl or weights.percep)
    on_bridge = paths.regen_on == "bridge"
    decode = (2 * (compared or on_bridge) + compared) * paths.decoded + (not on_bridge)
    encode = 1 + on_bridge * paths.decoded
    return {"unet": unet, "decode": float(decode), "encode": float(encode)}


if __name__ == "__main__":
    main()
