"""The pixel layer under attack: removal, forgery, collusion, and what a stranger learns.

    python benchmarks/security_pixel.py --pictures DIR DIR --folder RUN
    python benchmarks/security_pixel.py --folder RUN --report

Settings of attacks are chosen on victims of the tune part and reported on victims of the test part
(`pictures.split`); pictures that an attacker has seen are others of the tune part. The experiments are the files
of `security/`. A stop loses nothing: the same command goes on, with `--only` it makes the rows whose names begin
so, and `--report` writes results/security/pixel.json and the tables of docs/threat-model.md.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402

import security_tables  # noqa: E402
from pictures import Run  # noqa: E402
from security import collusion, forgery, oracle, privacy, seen, sets, tones, with_key  # noqa: E402
from security.measuring import Tasks  # noqa: E402
from security.testbed import SEED, Testbed  # noqa: E402

from diffmark.provenance import command_line  # noqa: E402

MODULES = (*pictures.WRITER, "detection/decision", "detection/pixel")


def tasks(testbed: Testbed) -> Tasks:
    """Every row by its name."""
    yield "none", partial(testbed.removal, lambda victim, _: victim.marked)
    for experiment in (with_key, tones, forgery, collusion, seen, privacy, sets, oracle):
        yield from experiment.tasks(testbed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pictures", type=Path, nargs="+", help="folders of photographs and generated pictures"
    )
    parser.add_argument("--folder", type=Path, required=True, help="rows and marked pictures of the run")
    parser.add_argument("--victims", type=int, default=24)
    parser.add_argument("--tuning", type=int, default=8)
    parser.add_argument("--pool", type=int, default=1000, help="marked pictures that the attacker has seen")
    parser.add_argument("--only", nargs="+", default=[""], help="rows whose names begin so")
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    given = parser.parse_args()
    if given.report:
        security_tables.report("pixel", given.folder)
        return
    config = {"victims": given.victims, "tuning": given.tuning, "seed": SEED}
    run = Run(given.folder, config, MODULES)
    run.head(command_line(), config, whole=given.only == [""])
    testbed = Testbed(given.pictures, given.folder, given.victims, given.tuning, given.pool)
    run.extend_named(tasks(testbed), given.only)


if __name__ == "__main__":
    main()
