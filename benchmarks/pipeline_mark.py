"""What the mark of pipelines, estimated from the picture alone, loses against that of `embed`, fitted to copies.

    python benchmarks/pipeline_mark.py --pictures DIR DIR --folder RUN

Each picture is marked both ways with the same secret at 256 and at 512 pixels, attacked alike, and read with the
search. Pictures are of the tune part (`pictures.split`), on which the constants of both were chosen: this compares
the two, it does not say what either reaches on other pictures (`pixel_robustness.py` does, for `embed`).
A row is one mark on one picture; a stop loses nothing, and the results are of the rows that are there.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from pictures import WRITER, Row, Run, files  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_attacks import COMBINED, HARSH, KEPT, MOVED  # noqa: E402
from pixel_robustness import visibility  # noqa: E402

from diffmark.pixel.codec import PixelCodec  # noqa: E402
from diffmark.pixel.writer import ROUNDS  # noqa: E402
from diffmark.provenance import command_line, versions  # noqa: E402
from diffmark.statistics import match_threshold  # noqa: E402

FPR = 1e-6
SIDES = (256, 512)
WRITERS = {"pipelines": 0, "embed": ROUNDS}  # rounds of fitting to copies
KNOWN = {**KEPT, **MOVED, **COMBINED, **HARSH}
ATTACKS = (
    "nothing",
    "JPEG 50",
    "JPEG 25",
    "JPEG 10",
    "half size",
    "noise 0.1",
    "blur 8",
    "rotation 27",
    "crop to 0.5",
    "crop to 0.25",
    "crop 0.5, JPEG 75",
    "rotation 30, crop 0.6, JPEG 75",
)
VISIBLE = ("ssimulacra2", "butteraugli_3", "psnr")


@dataclass(frozen=True)
class Task:
    """One mark on one picture."""

    number: int  # of the picture
    side: int
    writer: str  # one of WRITERS

    @property
    def name(self) -> str:
        return f"{self.writer} {self.side} {self.number}"


_state: dict[str, Any] = {}


def prepare(paths: list[Path], seed: int) -> None:
    _state.update(paths=paths, seed=seed, codec=PixelCodec())


def measure(task: Task) -> Row:
    """Visibility of a mark, and matching bits after each attack."""
    codec, chance = _state["codec"], [_state["seed"], task.number]
    with Image.open(_state["paths"][task.number]) as opened:
        cover = ImageOps.fit(opened.convert("RGB"), (task.side, task.side), Image.Resampling.LANCZOS)
    secret = np.random.default_rng(chance).integers(2, size=codec.length, dtype=np.uint8)
    levels = np.asarray(cover) + codec.residual(cover, secret, rounds=WRITERS[task.writer])
    marked = Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))
    matches = {}
    for name in ATTACKS:
        attacked = KNOWN[name](marked, np.random.default_rng([*chance, *name.encode()]))
        matches[name] = int(((codec.read(attacked).margins > 0) == (secret > 0)).sum())
    return {"id": task.name, **asdict(task), "matches": matches, **visibility(cover, marked)}


def summary(rows: list[Row], length: int = 64) -> list[dict[str, Any]]:
    """Means over the pictures that were marked both ways, a line for each side and writer."""
    found, needed = [], match_threshold(length, FPR)
    for side in SIDES:
        by_writer = {
            writer: {row["number"]: row for row in rows if (row["side"], row["writer"]) == (side, writer)}
            for writer in WRITERS
        }
        both = sorted(set.intersection(*map(set, by_writer.values())))
        for writer, own in by_writer.items() if both else ():
            chosen = [own[number] for number in both]
            counts = {name: np.array([row["matches"][name] for row in chosen]) for name in ATTACKS}
            found.append(
                {
                    "side": side,
                    "writer": writer,
                    "pictures": len(both),
                    **{name: round(float(np.mean([row[name] for row in chosen])), 2) for name in VISIBLE},
                    "least_ssimulacra2": round(min(row["ssimulacra2"] for row in chosen), 1),
                    "bit_accuracy": {name: round(float(n.mean()) / length, 4) for name, n in counts.items()},
                    "marked": {name: round(float((n >= needed).mean()), 4) for name, n in counts.items()},
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, nargs="+", required=True, help="folders")
    parser.add_argument("--folder", type=Path, required=True, help="of the run")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=25)
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    parser.add_argument("--out", type=Path, default=Path("results/pipeline_mark.json"))
    options = parser.parse_args()
    config = {
        "folders": [folder.name for folder in options.pictures],
        "count": options.count,
        "seed": options.seed,
    }
    lists = [files(folder, "tune") for folder in options.pictures]
    drawn = [list(np.random.default_rng(options.seed).permutation(len(paths))) for paths in lists]
    each = -(-options.count // len(lists))
    paths = [lists[i][drawn[i][n]] for n in range(each) for i in range(len(lists))][: options.count]
    run = Run(options.folder, config, WRITER)
    tasks = [Task(number, side, name) for number in range(len(paths)) for side in SIDES for name in WRITERS]
    if not options.report:
        run.extend(measure, tasks, options.jobs, lambda task: task.name, prepare, (paths, options.seed))
    head = {"command": command_line(), "config": config, "seed": options.seed, "versions": versions()}
    document = {**head, "revision": run.revision, "pixel_code": run.code, "results": summary(run.rows())}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
