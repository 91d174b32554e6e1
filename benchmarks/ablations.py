"""Train and measure the codecs of configs/ablations beside base.toml, from which most differ in one thing.

    python benchmarks/ablations.py             # all that results/ablations has no JSON of yet
    python benchmarks/ablations.py bridge_2    # one of them

Pretraining, dual path and measurement on generated images that no training saw, one after the other. A run that was
stopped goes on. Runs that pretrain in the same way share it. Where a guard stops a run, that is its result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diffmark.latent.codec import Codec
from diffmark.provenance import provenance
from diffmark.training.config import TrainingConfig, read_config
from diffmark.training.dual import train
from diffmark.training.guards import StoppedError
from diffmark.training.measurement import measure_codec
from diffmark.training.preparation import prepare, prepare_hosts
from diffmark.training.pretraining import pretrain

ROOT = Path(__file__).parents[1]


def pretrained(config: TrainingConfig, runs: Path, cache: Path) -> Codec | None:
    """The codec that the dual path starts from; None where the run file pretrains for no step."""
    if config.pretraining.steps == 0:
        return None
    settings = {
        name: value
        for name, value in asdict(config).items()
        if name in ("codec", "data", "pretraining", "seed")
    }
    folder = (
        runs / f"pretrained-{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]}"
    )
    if not (folder / "codec").exists():
        pretrain(config, folder, prepare_hosts(config, cache=cache))
    return Codec.from_pretrained(folder / "codec")


def trained_and_measured(name: str, config: TrainingConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    folder, cache = arguments.runs / name, arguments.cache
    start = pretrained(config, arguments.runs, cache)
    material = prepare(config, cache=cache)
    try:
        train(config, folder, material.autoencoder, material.paths, start)
    except StoppedError as stopped:
        return {"stopped": str(stopped)}
    best = folder / "best" if (folder / "best").exists() else folder / "codec"
    found, _ = measure_codec(
        best, config, arguments.marked, arguments.negatives, cache=cache, autoencoder=material.autoencoder
    )
    return {"results": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="files of configs/ablations without .toml; all by default")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/ablations")
    parser.add_argument("--cache", type=Path, default=ROOT / "runs/cache")
    parser.add_argument("--out", type=Path, default=ROOT / "results/ablations")
    parser.add_argument("--marked", type=int, default=16)
    parser.add_argument("--negatives", type=int, default=64)
    arguments = parser.parse_args()
    configs = {path.stem: path for path in sorted((ROOT / "configs/ablations").glob("*.toml"))}
    if unknown := set(arguments.names) - set(configs):
        parser.error(f"no {', '.join(sorted(unknown))} in configs/ablations; there are {', '.join(configs)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or configs:
        out = arguments.out / f"{name}.json"
        if out.exists() and not arguments.names:
            continue
        config = read_config(configs[name])
        found = trained_and_measured(name, config, arguments)
        settings = {**asdict(config), "marked": arguments.marked, "negatives": arguments.negatives}
        document = {
            **provenance(f"python benchmarks/ablations.py {name}", settings),
            "seed": config.seed,
            **found,
        }
        out.write_text(json.dumps(document, indent=2) + "\n")
        shown = found.get("stopped") or (found["results"]["psnr"], found["results"]["attacks"]["none"])
        print(name, shown, file=sys.stderr)


if __name__ == "__main__":
    main()
