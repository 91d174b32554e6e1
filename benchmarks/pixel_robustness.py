"""The pixel layer after everything that happens to pictures, beside what else marks finished images, in one run.

    python benchmarks/pixel_robustness.py --pictures DIR DIR --autoencoders DIR --folder RUN \\
        --docs docs/pixel.md README.md

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
from collections.abc import Callable  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from functools import cache  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from pictures import Row, Run, files, give_one_thread, of_share  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_corpus import crop, frame  # noqa: E402

from diffmark.attacks import distortion, everyday  # noqa: E402
from diffmark.metrics import psnr  # noqa: E402
from diffmark.provenance import command_line, versions  # noqa: E402
from diffmark.statistics import clopper_pearson, match_threshold  # noqa: E402

FPR = 1e-6
GROUPS = ("figures", "sizes", "curve", "waves")  # of tasks
SIDE = 512
ORDER, SEEN = 21, 24
TRIPS = 16  # pictures, at least, that are sent through autoencoders
STRENGTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
QUALITIES = (65.0, 70.0, 75.0, 80.0, 85.0, 90.0)  # of the strength curve
RIVAL_STRENGTHS = (0.4, 1.0)  # of WAVES: others decode slowly
RIVALS = ("rivaGan", "dwtDctSvd", "dwtDct", "blindWatermark")
RETIRED = ("sd", "sdxl", "sd3", "flux")  # codecs of release 0.1: rows that its revision made are still shown
ROUND_TRIPS = {
    "taesdxl": ("taesdxl", 4),
    "taesd3": ("taesd3", 16),
    "taef1": ("taef1", 16),
    "taesd": ("taesd", 4),
}
TURNS = {
    90: Image.Transpose.ROTATE_90,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_270,
}

Rng = np.random.Generator
Distort = Callable[[Image.Image, Rng], Image.Image]


# --- attacks -----------------------------------------------------------------------------------------------


def by(distort: Callable[[Image.Image, float, Rng], Image.Image], value: float) -> Distort:
    return lambda image, rng: distort(image, value, rng)


def chain(*steps: Distort) -> Distort:
    def distort(image: Image.Image, rng: Rng) -> Image.Image:
        for step in steps:
            image = step(image, rng)
        return image

    return distort


def cropped(area: float) -> Distort:
    return lambda image, rng: crop(image, area, rng)


def turned(angle: int) -> Distort:
    return lambda image, rng: image.transpose(TURNS[angle])


def mirrored(image: Image.Image, rng: Rng) -> Image.Image:
    return ImageOps.mirror(image)


def grey(image: Image.Image, rng: Rng) -> Image.Image:
    return image.convert("L").convert("RGB")


def half_and_back(image: Image.Image, rng: Rng) -> Image.Image:
    return everyday.resize(image, 0.5, rng).resize(image.size, Image.Resampling.BICUBIC)


def unchanged(image: Image.Image, rng: Rng) -> Image.Image:
    return image


KEPT: dict[str, Distort] = {
    "nothing": unchanged,
    "JPEG 75": by(distortion.jpeg, 75),
    "JPEG 50": by(distortion.jpeg, 50),
    "WebP 50": by(everyday.webp, 50),
    "AVIF 50": by(everyday.avif, 50),
    "half size": by(everyday.resize, 0.5),
    "half size and back": half_and_back,
    "double size": by(everyday.resize, 2),
    "noise 0.05": by(distortion.noise, 0.05),
    "brightness 2": by(distortion.brightness, 2),
    "contrast 2": by(distortion.contrast, 2),
    "gamma 2": by(everyday.gamma, 2),
    "gamma 0.5": by(everyday.gamma, 0.5),
    "greyscale": grey,
}
MOVED: dict[str, Distort] = {
    **{f"rotation {angle}": by(distortion.rotation, angle) for angle in (9, 27, 45)},
    **{f"rotation {angle}": turned(angle) for angle in TURNS},
    "mirror": mirrored,
    **{f"crop to {area}": cropped(area) for area in (0.9, 0.7, 0.5)},
    "padding 0.2 a side": by(everyday.padding, 0.2),
    "screenshot in a frame": frame,
}
COMBINED: dict[str, Distort] = {
    "rotation 30, crop 0.6, JPEG 75": chain(
        by(distortion.rotation, 30), cropped(0.6), by(distortion.jpeg, 75)
    ),
    "crop 0.5, JPEG 75": chain(cropped(0.5), by(distortion.jpeg, 75)),
    "crop 0.9, resize 0.7, JPEG 75": chain(cropped(0.9), by(everyday.resize, 0.7), by(distortion.jpeg, 75)),
}
HARSH: dict[str, Distort] = {
    "JPEG 25": by(distortion.jpeg, 25),
    "JPEG 10": by(distortion.jpeg, 10),
    "noise 0.1": by(distortion.noise, 0.1),
    "erasing 25%": by(distortion.erasing, 0.25),
    "crop to 0.25": cropped(0.25),
    "blur 8": by(distortion.blur, 8),
    "blur 20": by(distortion.blur, 20),
}
CURVE = (
    "JPEG 25",
    "JPEG 10",
    "rotation 27",
    "crop to 0.5",
    "crop 0.5, JPEG 75",
    "crop to 0.25",
    "blur 8",
    "taesd",
)
HEADLINE = (
    "nothing",
    "JPEG 50",
    "JPEG 10",
    "noise 0.1",
    "rotation 27",
    "mirror",
    "crop to 0.5",
    "screenshot in a frame",
    "rotation 30, crop 0.6, JPEG 75",
    "blur 8",
)
# The figures of the pixel layer's design: (bit accuracy, share marked); what a row without one is asked is None.
ASKED: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(KEPT, (0.995, 1.0)),
    **dict.fromkeys(MOVED, (0.98, 0.98)),
    **dict.fromkeys(COMBINED, (0.95, 0.95)),
    "JPEG 25": (0.98, 0.95),
    "JPEG 10": (0.90, 0.95),
    "noise 0.1": (0.98, 0.95),
    "erasing 25%": (0.98, 0.95),
    "crop to 0.25": (0.85, 0.8),
    "blur 8": (0.95, 0.8),
    "blur 20": (0.85, 0.8),
    "taesdxl": (0.98, 0.9),
    "taesd3": (0.98, 0.9),
    "taef1": (0.98, 0.9),
    "taesd": (0.85, 0.8),
    "taesd twice": (0.75, None),
}


def waves() -> dict[str, Distort]:
    """Each distortion of WAVES at every strength, and its combinations at equal strengths."""
    known = {attack.name: attack for attack in distortion.ATTACKS}
    geometric, photometric = ("rotation", "resized_crop", "erasing"), ("brightness", "contrast")
    groups = {name: (name,) for name in known} | {
        "geometric": geometric,
        "photometric": photometric,
        "degradation": ("blur", "noise", "jpeg"),
        "all": (*geometric, *photometric, "blur", "noise", "jpeg"),
    }
    return {
        f"waves {group} {strength}": chain(
            *(by(known[name].distort, known[name].value(strength)) for name in names)
        )
        for group, names in groups.items()
        for strength in STRENGTHS
    }


@cache
def tiny_autoencoder(folder: str, stem: str, channels: int) -> Any:
    """A distilled autoencoder from its two files of weights."""
    import torch
    from diffusers import AutoencoderTiny
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    model, state = AutoencoderTiny(latent_channels=channels), {}
    for name, value in load_file(Path(folder) / f"{stem}_encoder.safetensors").items():
        state[f"encoder.layers.{name}"] = value.float()
    for name, value in load_file(Path(folder) / f"{stem}_decoder.safetensors").items():
        layer, rest = name.split(".", 1)
        state[f"decoder.layers.{int(layer) - 1}.{rest}"] = value.float()
    model.load_state_dict(state)
    return model.eval().to(memory_format=torch.channels_last)


def round_trip(folder: str, stem: str, channels: int) -> Distort:
    """Encoded, decoded, rounded to 8 bits."""

    def distort(image: Image.Image, rng: Rng) -> Image.Image:
        import torch

        model = tiny_autoencoder(folder, stem, channels)
        pixels = torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1).permute(2, 0, 1)[None]
        with torch.no_grad():
            made = model.decode(model.encode(pixels).latents).sample[0]
        levels = ((made.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0)
        return Image.fromarray(levels.numpy())

    return distort


def attacks(autoencoders: str | None) -> dict[str, Distort]:
    """All of them by name, in the order of the table."""
    found = {**KEPT, **MOVED, **COMBINED, **HARSH}
    if autoencoders:
        trips = {
            name: round_trip(autoencoders, stem, channels) for name, (stem, channels) in ROUND_TRIPS.items()
        }
        found |= {**trips, "taesd twice": chain(trips["taesd"], trips["taesd"])}
    return found | waves()


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


# --- tables ------------------------------------------------------------------------------------------------


def summary(rows: list[Row]) -> dict[str, Any]:
    """Visibility and cells of each method."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_name(row), []).append(row)
    whole = {name: group for name, group in groups.items() if any(row["visibility"] for row in group)}
    return {name: _figures(group) for name, group in sorted(whole.items(), key=_place)}


def group_name(row: Row) -> str:
    if row["quality"] is not None:
        return f"pixel, quality {row['quality']:g}"
    return row["method"] if row["size"] == SIDE else f"{row['method']}, {row['size']} px"


def _place(group: tuple[str, Any]) -> tuple[int, str]:
    order = ["pixel", *RIVALS, *RETIRED]
    return (order.index(group[0]) if group[0] in order else len(order)), group[0]


def _figures(rows: list[Row]) -> dict[str, Any]:
    visible, seen = {}, [row for row in rows if row["visibility"]]
    for name, worst in (("ssimulacra2", 5), ("butteraugli_3", 95), ("psnr", 5)):
        values = [row["visibility"][name] for row in seen]
        visible[name] = {"mean": round(float(np.mean(values)), 3), f"percentile_{worst}": _at(values, worst)}
    names = list(dict.fromkeys(name for row in rows for name in row["matches"]))
    return {
        "pictures": len(seen),
        "bits": rows[0]["bits"],
        "visibility": visible,
        "cells": {name: cell([row for row in rows if name in row["matches"]], name) for name in names},
    }


def _at(values: list[float], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 3)


def cell(rows: list[Row], attack: str) -> dict[str, Any]:
    """Bit accuracy, share marked at FPR with its exact interval, number of pictures."""
    bits = rows[0]["bits"]
    matches = np.array([row["matches"][attack] for row in rows])
    hits = int((matches >= match_threshold(bits, FPR)).sum())
    low, high = clopper_pearson(hits, len(rows))
    return {
        "bit_accuracy": round(float(matches.mean()) / bits, 4),
        "marked": round(hits / len(rows), 4),
        "interval_95": [round(low, 4), round(high, 4)],
        "n": len(rows),
    }


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def visibility_table(found: dict[str, Any]) -> str:
    names = ("ssimulacra2", "butteraugli_3", "psnr")
    heads = ["SSIMULACRA2, mean / 5th percentile", "Butteraugli 3-norm, mean / 95th", "PSNR, mean / 5th"]
    lines = [_line(["mark", "bits", "pictures", *heads]), "| --- " * 6 + "|"]
    for method, entry in found.items():
        values = [
            " / ".join(
                f"{value:.1f}" if name != "butteraugli_3" else f"{value:.2f}"
                for value in entry["visibility"][name].values()
            )
            for name in names
        ]
        lines.append(_line([method, str(entry["bits"]), str(entry["pictures"]), *values]))
    return "\n".join(lines)


def attack_table(found: dict[str, Any], methods: list[str], wanted: list[str]) -> str:
    """Bit accuracy and, in brackets, the share marked; the first column after the attack is what was asked."""
    methods = [method for method in methods if method in found]
    heads = [f"{method}{_counted(found[method]['cells'], wanted)}" for method in methods]
    lines = [_line(["after", "asked", *heads]), "| --- " * (2 + len(heads)) + "|"]
    for attack in wanted:
        entries = [found[method]["cells"].get(attack) for method in methods]
        if not any(entries):
            continue
        shown = [f"{e['bit_accuracy']:.3f} ({e['marked']:.2f})" if e else "" for e in entries]
        lines.append(_line([attack, _asked(attack), *shown]))
    return "\n".join(lines) if len(lines) > 2 else "Not measured yet."


def _counted(cells: dict[str, Any], wanted: list[str]) -> str:
    """How many pictures the cells of a column are of."""
    counts = {cells[attack]["n"] for attack in wanted if attack in cells}
    return f" (n = {'-'.join(map(str, sorted(counts)))})" if counts else ""


def _asked(attack: str) -> str:
    if attack not in ASKED:
        return ""
    accuracy, marked = ASKED[attack]
    return f"{accuracy:g}" + ("" if marked is None else f" ({marked:g})")


def headline(found: dict[str, Any]) -> str:
    """The least that a reader wants to know: visibility, and the share marked after a few attacks."""
    shown = [name for name in ("pixel", *RIVALS) if name in found]
    lines = [_line(["share of pictures marked at FPR 1e-6", *shown]), "| --- " * (1 + len(shown)) + "|"]
    seen = [f"{found[name]['visibility']['ssimulacra2']['mean']:.0f}" for name in shown]
    lines.append(_line(["SSIMULACRA2 of the mark (higher is less visible)", *seen]))
    for attack in HEADLINE:
        cells = [found[name]["cells"].get(attack) for name in shown]
        lines.append(_line([attack, *(f"{cell['marked']:.2f}" if cell else "" for cell in cells)]))
    counts = ", ".join(f"{found[name]['pictures']} for {name}" for name in shown)
    return "\n".join(lines) + (
        f"\n\nPhotographs and SD images of 512 px that nothing was tuned on ({counts}); all rows "
        "are in [docs/pixel.md](docs/pixel.md) and `results/pixel_robustness.json`."
    )


def tables(found: dict[str, Any]) -> dict[str, str]:
    """What goes into the page, by the name of its place."""
    main = ["pixel", *RIVALS, *RETIRED]
    figures = [*KEPT, *MOVED, *COMBINED, *HARSH, *ROUND_TRIPS, "taesd twice"]
    others = [name for name in found if name not in main]
    return {
        "pixel headline": headline(found),
        "pixel visibility": visibility_table(found),
        "pixel robustness": attack_table(found, main, figures),
        "pixel waves": attack_table(found, main, list(waves())),
        "pixel sizes": attack_table(found, [n for n in others if "px" in n], [*KEPT, *MOVED]),
        "pixel curve": attack_table(found, [n for n in others if "quality" in n], list(CURVE)),
    }


def write(run: Run, seed: int, out: Path, docs: list[Path]) -> None:
    """The results of the rows that are there, and the tables of pages."""
    found = summary(run.rows())
    kept, of = earlier_results(out, found)
    found = dict(sorted({**found, **kept}.items(), key=_place))
    head = {"command": command_line(), "seed": seed, "versions": versions(), "revision": run.revision}
    head["earlier"] = {"methods": list(kept), "revision": of}
    config = {"fpr": FPR, "pixel_code": run.code, "folders": run_folders(run)}
    out.write_text(json.dumps({**head, "config": config, "results": found}, indent=1) + "\n")
    for page in docs:
        pictures.fill(page, tables(found))


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
