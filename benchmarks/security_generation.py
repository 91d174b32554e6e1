"""The generation layer under attack, on the codecs that ship: removal, forgery, collusion, privacy.

    python benchmarks/security_generation.py --folder RUN
    python benchmarks/security_generation.py --folder RUN --codec vista-final --model vista-lcm --steps 4
    python benchmarks/security_generation.py --folder RUN --report

The networks are public, the operator's key is not. Strengths are chosen on prompts of the tune part and reported on
others. The experiments are in `security/noise.py` for codecs of initial noise, in `security/generation.py` for
those with a learned delta, and in `security/latents.py` for both. A stop loses nothing; another codec needs an
empty folder. `--report` writes results/security/CODEC.json and the tables.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
from pathlib import Path  # noqa: E402

import security_tables  # noqa: E402
from pictures import Run  # noqa: E402
from security import generation, noise  # noqa: E402
from security.generation_testbed import SEED, GenerationTestbed  # noqa: E402

from diffmark.latent.files import find_codec, read_config  # noqa: E402
from diffmark.provenance import command_line  # noqa: E402

MODULES = ("latent/codec", "latent/networks", "latent/noise", "latent/lean", "keys/bits", "mark/context")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="rows and pictures of the run")
    parser.add_argument("--codec", default="vista")
    parser.add_argument("--model", default="vista")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--victims", type=int, default=20)
    parser.add_argument("--tuning", type=int, default=5)
    parser.add_argument("--pool", type=int, default=1000, help="marked pictures that the attacker has seen")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names begin so")
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    given = parser.parse_args()
    if given.report:
        security_tables.report(Path(given.codec).name, given.folder)
        return
    names = ("codec", "model", "steps", "victims", "tuning")
    weights = read_config(find_codec(given.codec))["sha256"]
    config = {name: getattr(given, name) for name in names} | {"seed": SEED, "weights": weights}
    run = Run(given.folder, config, MODULES)
    run.head(command_line(), config, whole=given.only == [""])
    sizes = (given.steps, given.victims, given.tuning, given.pool)
    testbed = GenerationTestbed(given.folder, given.codec, given.model, *sizes)
    run.extend_named((noise if testbed.in_noise else generation).tasks(testbed), given.only)


if __name__ == "__main__":
    main()
