"""The pixel layer after everything that happens to pictures, beside what else marks finished images, in one run.

    python benchmarks/pixel_robustness.py --pictures DIR DIR --autoencoders DIR --folder RUN --docs docs/pixel.md

Pictures are of the test part (`pictures.split`), as many of each folder, 512 x 512, in an order drawn once. The
first SEEN of each folder were reported on until 0.2.0, and one constant was chosen with them in sight: they are
tune pictures now, and those after them are taken. Every method marks them as it does by default and reads them
plainly; the pixel layer searches for a view where it needs to. A picture counts as marked when as many bits match
its secret as the exact binomial asks for at a false-positive rate of 1e-6. Slow methods get fewer pictures, and
WAVES at two strengths: every cell says how many. A row is one method on one picture; a stop loses nothing.

The packages that others publish read a picture at the size it arrives in, the pixel layer at its own: "half size
and back" is the change of size that is fair to all. Larger pictures are enlarged ones.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import warnings  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from pictures import Row, Run, files, give_one_thread, of_share  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_attacks import KEPT, MOVED, ROUND_TRIPS, STRENGTHS, attacks  # noqa: E402
from pixel_tables import CURVE, FPR, RETIRED, RIVALS, SIDE, place, summary, tables  # noqa: E402

from diffmark.metrics import psnr  # noqa: E402
from diffmark.provenance import command_line, versions  # noqa: E402

GROUPS = ("figures", "sizes", "curve", "waves")  # of tasks
ORDER, SEEN = 21, 24
TRIPS = 16  # pictures, at least, that are sent through autoencoders
QUALITIES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0)  # of the strength curve
RIVAL_STRENGTHS = (0.4, 1.0)  # of WAVES: others decode slowly


# --- methods -----------------------------------------------------------------------------------------------


class Pixel:
    """The pixel layer under the public key, at a least quality or its default."""

    name, bits = "pixel", 64

    def __init__(self, quality: float | None = None) -> None:
        from diffmark.pixel.codec import MarkWarning, PixelCodec

        warnings.simplefilter("ignore", MarkWarning)
        self.codec = PixelCodec()
        self.options = {} if quality is None else {"quality": quality}

    def embed(self, image: Image.Image, secret: Any) -> Image.Image:
        return self.codec.embed(image, secret, **self.options).image

    def decode(self, images: list[Image.Image]) -> Any:
        return np.stack([self.codec.read(image).margins for image in images])


@cache
def method_of(name: str, quality: float | None) -> Any:
    if name == "pixel":
        return Pixel(quality)
    from diffmark.baselines.classic import BlindWatermark, InvisibleWatermark

    give_one_thread()
    return BlindWatermark() if name == "blindWatermark" else InvisibleWatermark(name)


# --- one method on one picture -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One method on one picture."""

    method: str
    number: int  # of the picture
    size: int = SIDE
    group: str = "figures"  # one of GROUPS
    quality: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.size} {self.group} {self.quality} {self.number}"


_state: dict[str, Any] = {}


def prepare(paths: list[Path], autoencoders: str | None, seed: int, few: int) -> None:
    _state.update(paths=paths, attacks=attacks(autoencoders), seed=seed, few=few)


def measure(task: Task) -> Row:
    """Visibility of a mark, and matching bits after each attack."""
    with Image.open(_state["paths"][task.number]) as opened:
        cover = ImageOps.fit(opened.convert("RGB"), (task.size, task.size), Image.Resampling.LANCZOS)
    method = method_of(task.method, task.quality)
    rng = np.random.default_rng([_state["seed"], task.number])
    secret = rng.integers(2, size=method.bits, dtype=np.uint8)
    marked = method.embed(cover, secret)
    names = _names(task, list(_state["attacks"]))
    matches = {}
    for name in names:
        chance = np.random.default_rng([_state["seed"], task.number, *name.encode()])
        margins = method.decode([_state["attacks"][name](marked, chance)])[0]
        matches[name] = int(((np.asarray(margins) > 0) == secret.astype(bool)).sum())
    visible = None if task.group == "waves" else visibility(cover, marked)  # the mark is the figures' own
    return {"id": task.name, **asdict(task), "bits": method.bits, "visibility": visible, "matches": matches}


def _names(task: Task, known: list[str]) -> list[str]:
    """The attacks of a task; round trips are slow, and for few pictures."""
    if task.number >= max(_state["few"], TRIPS):
        known = [name for name in known if name not in (*ROUND_TRIPS, "taesd twice")]
    strengths = STRENGTHS if task.method == "pixel" else RIVAL_STRENGTHS
    wanted = {
        "figures": [name for name in known if not name.startswith("waves ")],
        "waves": [name for name in known if name.startswith("waves ") and _strength(name) in strengths],
        "sizes": [*KEPT, *MOVED],
        "curve": [name for name in CURVE if name in known],
    }
    return wanted[task.group]


def _strength(name: str) -> float:
    return float(name.split()[-1])


def visibility(cover: Image.Image, marked: Image.Image) -> dict[str, float]:
    """SSIMULACRA2, Butteraugli's 3-norm and PSNR."""
    from ssimulacra2 import compute_ssimulacra2

    with tempfile.TemporaryDirectory() as folder:
        before, after = f"{folder}/cover.png", f"{folder}/marked.png"
        cover.save(before, compress_level=1)
        marked.save(after, compress_level=1)
        said = subprocess.run(["butteraugli_main", before, after], capture_output=True, text=True, check=True)
        score = float(compute_ssimulacra2(before, after))
    norm = re.search(r"3-norm: ([0-9.]+)", said.stdout + said.stderr)
    if norm is None:
        raise ValueError(f"butteraugli_main said nothing of a 3-norm: {said.stdout!r}")
    return {"ssimulacra2": score, "butteraugli_3": float(norm[1]), "psnr": float(psnr(marked, cover))}


def tasks_of(count: int, few: int) -> list[Task]:
    """In two halves, so that a run that is stopped has something of everything; WAVES for all comes last."""
    found = []
    for numbers, fewer in (
        (range(count // 2), range(few // 2)),
        (range(count // 2, count), range(few // 2, few)),
    ):
        found += [Task("pixel", number) for number in numbers]
        for number in fewer:
            found += [Task("pixel", number, size, "sizes") for size in (256, 2048)]
            found.append(Task("pixel", number, SIDE, "waves"))
            found += [Task("pixel", number, SIDE, "curve", quality) for quality in QUALITIES]
        found += [
            Task(name, n, SIDE, group) for n in fewer for name in RIVALS for group in ("figures", "waves")
        ]
    return found + [Task("pixel", number, SIDE, "waves") for number in range(few, count)]


def write(run: Run, seed: int, out: Path, docs: list[Path]) -> None:
    """The results of the rows that are there, and the tables of pages."""
    found = summary(run.rows())
    kept, of = earlier_results(out, found)
    found = dict(sorted({**found, **kept}.items(), key=place))
    head = {"command": command_line(), "seed": seed, "versions": versions(), "revision": run.revision}
    head["earlier"] = {"methods": list(kept), "revision": of}
    config = {"fpr": FPR, "skipped": SEEN, "pixel_code": run.code, "folders": run_folders(run)}
    document = {**head, "config": config, "results": found}
    out.write_text(json.dumps(document, indent=1) + "\n")
    for page in docs:
        pictures.fill(page, tables(document))


def earlier_results(out: Path, found: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Rivals and retired codecs that an earlier run measured and this one did not, and that run's revision."""
    if not out.exists():
        return {}, None
    before = json.loads(out.read_text())
    kept = {
        name: before["results"][name]
        for name in (*RIVALS, *RETIRED)
        if name in before["results"] and name not in found
    }
    return kept, before.get("earlier", {}).get("revision") or before["revision"]


def run_folders(run: Run) -> list[str]:
    return json.loads((run.folder / "run.json").read_text())["config"]["folders"]


def chosen(folders: list[Path], count: int) -> list[Path]:
    """As many test pictures of each folder, in turn, of those that were not reported on before."""
    each = -(-count // len(folders))
    lists = []
    for folder in folders:
        listed = files(folder, "test")
        order = np.random.default_rng([ORDER, *folder.name.encode()]).permutation(len(listed))
        lists.append([listed[i] for i in order[SEEN : SEEN + each]])
    return [path for group in zip(*lists, strict=True) for path in group][:count]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, nargs="+", required=True, help="folders")
    parser.add_argument("--autoencoders", type=Path, help="folder of taesd*_encoder.safetensors and the like")
    parser.add_argument("--folder", type=Path, required=True, help="of the run")
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument(
        "--few",
        type=int,
        default=12,
        help="pictures for what is slow: other methods, other sizes, round trips",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--groups", nargs="*", choices=GROUPS, default=GROUPS, help="only these tasks")
    parser.add_argument("--part", default="1/1", help="i/n: only this share of the tasks")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    parser.add_argument("--docs", type=Path, nargs="*", default=[], help="pages whose tables are filled")
    parser.add_argument("--out", type=Path, default=Path("results/pixel_robustness.json"))
    options = parser.parse_args()
    names = [folder.name for folder in options.pictures]
    run = Run(
        options.folder, {"folders": names, "count": options.count, "seed": options.seed}, pictures.WRITER
    )
    if not options.report:
        paths = chosen(options.pictures, options.count)
        autoencoders = str(options.autoencoders) if options.autoencoders else None
        tasks = [task for task in tasks_of(options.count, options.few) if task.group in options.groups]
        tasks = of_share(tasks, options.part)
        run.extend(
            measure,
            tasks,
            options.jobs,
            lambda task: task.name,
            prepare,
            (paths, autoencoders, options.seed, options.few),
        )
    if options.report or options.part == "1/1":
        write(run, options.seed, options.out, options.docs)


if __name__ == "__main__":
    main()
