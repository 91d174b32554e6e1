"""What the pixel layer's reader says of pictures that carry no mark, and its calibration.

    python benchmarks/pixel_negatives.py --pictures DIR DIR --emoji-font FILE --folder RUN --count 30000

Pictures of many kinds (`pixel_corpus`), about half of them attacked, are read with the whole search under 16 keys
in turn. Two of three belong to the tune part and give the tail of the evidence that the reader's blind verdict is
calibrated by; the others, of other files, other text and other seeds, are only reported on. A stop loses nothing:
the same command goes on, and `--report` writes what there is.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from markdown_tables import table as markdown_table  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Row, Run, fixed_keys, of_share  # noqa: E402
from pixel_corpus import Corpus  # noqa: E402
from pixel_pages import render_pages  # noqa: E402
from pixel_tables import bits_table  # noqa: E402
from scipy import stats  # noqa: E402

from diffmark.latent.calibration import Calibration  # noqa: E402
from diffmark.pixel.codec import PixelCodec  # noqa: E402
from diffmark.provenance import command_line, versions  # noqa: E402
from diffmark.statistics import clopper_pearson, match_threshold  # noqa: E402

KEYS, SECRETS = 16, 20
STATED = (1e-2, 1e-3, 1e-4)
WITH_SECRET = (1e-3, 1e-6)
PAGES = {"tune": 360, "test": 180}
MIN_PICTURES = 50  # pictures of a group whose bits are tested for leaning

_state: dict[str, Any] = {}


def prepare(corpus: Corpus) -> None:
    """What each process needs."""
    _state["corpus"] = corpus
    _state["codecs"] = [PixelCodec(key) for key in fixed_keys(KEYS)]


def part_of(number: int) -> str:
    """Two tune pictures, then one test picture, so that a run that is stopped has both."""
    return "test" if number % 3 == 2 else "tune"


def read_one(number: int) -> Row:
    """The row of one picture: what it is, and what was read."""
    drawn = _state["corpus"].draw(number, part_of(number))
    key = number // 3 % KEYS
    start = time.process_time()
    reading = _state["codecs"][key].read(drawn.image)
    seconds = time.process_time() - start
    margins = reading.margins
    if not np.isfinite(margins).all() or not np.isfinite(reading.evidence):
        raise ValueError(f"picture {number} ({drawn.kind}, {drawn.attacks}) gave margins that are not finite")
    return {
        "id": str(number),
        "part": part_of(number),
        "kind": drawn.kind,
        "attacks": drawn.attacks,
        "jpeg": drawn.jpeg,
        "size": drawn.image.size,
        "key": key,
        "evidence": round(reading.evidence, 4),
        "view": reading.view is not None,
        "margins": [float(f"{margin:.3g}") for margin in margins],
        "seconds": round(seconds, 4),
    }


# --- what the rows say -------------------------------------------------------------------------------------


def calibrate(rows: list[Row], head: dict[str, Any]) -> dict[str, Any]:
    """The tail of the evidence of the tune part."""
    tune = [row for row in rows if row["part"] == "tune"]
    measured = Calibration.measure([row["evidence"] for row in tune])
    return {
        "negatives": measured.negatives,
        "tail": [[p, round(nats, 4)] for p, nats in measured.tail],
        "kinds": dict(sorted(Counter(row["kind"] for row in tune).items())),
        **head,
    }


def false_positives(rows: list[Row], tail: dict[float, float]) -> dict[str, Any]:
    """Share of unmarked pictures over the evidence that each stated rate asks for, with exact intervals."""
    found: dict[str, Any] = {"pictures": len(rows)}
    for stated in STATED:
        if stated not in tail:
            found[f"{stated:g}"] = None
            continue
        passed = sum(row["evidence"] > tail[stated] for row in rows)
        low, high = clopper_pearson(passed, len(rows))
        found[f"{stated:g}"] = {"passed": passed, "rate": passed / len(rows), "interval_95": [low, high]}
    return found


def with_secret(rows: list[Row], seed: int) -> dict[str, Any]:
    """Matching bits against fixed random secrets: share over the exact binomial threshold."""
    margins = np.array([row["margins"] for row in rows])
    length = margins.shape[1]
    secrets = np.random.default_rng([seed, 64]).integers(2, size=(SECRETS, length))
    matches = ((margins > 0)[:, None] == secrets[None].astype(bool)).sum(axis=2)  # (N, SECRETS)
    found: dict[str, Any] = {"secrets": SECRETS, "pictures": len(rows), "most_matches": int(matches.max())}
    for stated in WITH_SECRET:
        needed = match_threshold(length, stated)
        passed = (matches >= needed).sum(axis=0)
        low, high = clopper_pearson(int(passed.sum()), matches.size)
        exact = float(stats.binom.sf(needed - 1, length, 0.5))
        found[f"{stated:g}"] = {
            "matches_needed": needed,
            "exact_tail": exact,
            "passed": int(passed.sum()),
            "tests": matches.size,
            "rate": float(passed.sum() / matches.size),
            "interval_95": [low, high],
            "worst_secret": {
                "passed": int(passed.max()),
                "rate": float(passed.max() / len(rows)),
                "p_of_the_worst_by_chance": float(
                    1 - stats.binom.cdf(passed.max() - 1, len(rows), exact) ** SECRETS
                ),
            },
        }
    return found


def leaning(margins: NDArray[np.float64]) -> dict[str, Any]:
    """How far single bits lean and pairs go together on pictures of one key, against chance.

    Under chance a bit's mean sign times sqrt(n) and a pair's correlation times sqrt(n) are standard normal.
    """
    signs = np.sign(margins)
    signs = signs[np.any(signs != 0, axis=1)]  # a flat picture says nothing
    count, length = signs.shape
    z = signs.mean(axis=0) * np.sqrt(count)
    pairs = (signs.T @ signs / count)[np.triu_indices(length, 1)]
    return {
        "pictures": count,
        "largest_z": float(np.abs(z).max()),
        "p_of_largest_z": _largest_by_chance(float(np.abs(z).max()), length),
        "mean_sign_of_that_bit": float(signs.mean(axis=0)[np.abs(z).argmax()]),
        "mean_square_z": float(np.mean(z**2)),
        "largest_correlation": float(np.abs(pairs).max()),
        "p_of_largest_correlation": _largest_by_chance(float(np.abs(pairs).max()) * count**0.5, len(pairs)),
        "mean_square_correlation_times_n": float(np.mean(pairs**2) * count),
    }


def _largest_by_chance(z: float, count: int) -> float:
    """Probability that the largest of so many normal variables is this far from 0."""
    return float(-np.expm1(count * np.log1p(-min(2 * stats.norm.sf(z), 1 - 1e-16))))


def leanings(rows: list[Row]) -> dict[str, Any]:
    """`leaning` by kind, of pictures with a JPEG grid and of others, for every key that has enough of them.

    Pictures that were drawn again, attacked otherwise, count again: a mean square of z a little above 1 is theirs.
    """
    found: dict[str, Any] = {}
    for name, jpeg in sorted({(row["kind"], row["jpeg"]) for row in rows}):
        group = [row for row in rows if (row["kind"], row["jpeg"]) == (name, jpeg)]
        by_key = []
        for key in range(KEYS):
            margins = np.array([row["margins"] for row in group if row["key"] == key])
            if len(margins) >= MIN_PICTURES:
                by_key.append(leaning(margins))
        if by_key:
            found[f"{name}, JPEG" if jpeg else name] = {
                "pictures": len(group),
                "keys": len(by_key),
                "mean_square_z": float(np.mean([entry["mean_square_z"] for entry in by_key])),
                "largest_z": max(entry["largest_z"] for entry in by_key),
                "p_of_largest_z": min(1.0, len(by_key) * min(entry["p_of_largest_z"] for entry in by_key)),
                "largest_correlation": max(entry["largest_correlation"] for entry in by_key),
                "p_of_largest_correlation": min(
                    1.0, len(by_key) * min(entry["p_of_largest_correlation"] for entry in by_key)
                ),
            }
    return found


def report(rows: list[Row], calibration: dict[str, Any], seed: int) -> dict[str, Any]:
    """Everything on the pictures kept apart; evidence and times of all."""
    test = [row for row in rows if row["part"] == "test"]
    tail = {float(p): nats for p, nats in calibration["tail"]}
    kinds = sorted({row["kind"] for row in test})
    groups = {kind: [row for row in test if row["kind"] == kind] for kind in kinds}
    evidence = np.array([row["evidence"] for row in test])
    seconds = np.array([row["seconds"] for row in rows])
    return {
        "calibrated_on": calibration["negatives"],
        "reported_on": len(test),
        "attacked": float(np.mean([bool(row["attacks"]) for row in test])),
        "view_found": float(np.mean([row["view"] for row in test])),
        "false_positives": false_positives(test, tail),
        "by_kind": {kind: false_positives(group, tail) for kind, group in groups.items()},
        "evidence_by_kind": {
            kind: {
                "median": float(np.median([row["evidence"] for row in group])),
                "largest": max(row["evidence"] for row in group),
                "view_found": float(np.mean([row["view"] for row in group])),
            }
            for kind, group in groups.items()
        },
        "largest_evidence": float(evidence.max()),
        "with_secret": with_secret(test, seed),
        "bits": leanings(rows),
        "seconds_per_picture": {"mean": float(seconds.mean()), "95th": float(np.quantile(seconds, 0.95))},
    }


def table(found: dict[str, Any]) -> str:
    """Stated and observed rates, for the page."""
    heads = ["stated rate", f"observed on {found['reported_on']:,} pictures kept apart", "95% interval"]
    lines = []
    blind = [(f"blind, {stated:g}", found["false_positives"][f"{stated:g}"]) for stated in STATED]
    secret = [(f"with a secret, {stated:g}", found["with_secret"][f"{stated:g}"]) for stated in WITH_SECRET]
    for name, entry in (*blind, *secret):
        if entry:
            low, high = entry["interval_95"]
            lines.append([name, f"{entry['rate']:.2g}", f"{low:.2g} ... {high:.2g}"])
    return markdown_table(heads, lines)


def write(run: Run, seed: int, calibration_path: Path, out: Path, docs: Path | None) -> None:
    """Both files from the rows that are there, and the page's table."""
    rows = run.rows()
    head = {
        "seed": seed,
        "versions": versions(),
        "revision": run.revision,
        "pixel_code": run.code,
        "command": command_line(),
    }
    calibration = calibrate(rows, head)
    calibration_path.write_text(json.dumps(calibration, indent=1) + "\n")
    found = report(rows, calibration, seed)
    out.write_text(json.dumps({**head, "results": found}, indent=1) + "\n")
    if docs:
        pictures.fill(docs, {"pixel negatives": table(found), "pixel bits": bits_table(found)})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pictures", type=Path, nargs="+", required=True, help="folders of unmarked pictures"
    )
    parser.add_argument("--emoji-font", type=Path, help="a bitmap font of emoji; without it, clip art")
    parser.add_argument("--folder", type=Path, required=True, help="of the run: rows and rendered pages")
    parser.add_argument("--count", type=int, default=30_000, help="pictures in all, a third kept apart")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", default="1/1", help="i/n: only this share of the pictures")
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    parser.add_argument("--calibration", type=Path, default=Path("src/diffmark/pixel/calibration.json"))
    parser.add_argument("--docs", type=Path, help="page whose table is filled")
    parser.add_argument("--out", type=Path, default=Path("results/pixel_negatives.json"))
    options = parser.parse_args()
    kinds = [folder.name for folder in options.pictures]
    emoji = options.emoji_font.name if options.emoji_font else None
    run = Run(
        options.folder,
        {"folders": kinds, "emoji": emoji, "seed": options.seed, "pages": PAGES},
        pictures.READER,
    )
    if not options.report:
        for part, count in PAGES.items():
            render_pages(options.folder / "pages", part, count, options.seed)
        corpus = Corpus(tuple(options.pictures), options.folder / "pages", options.emoji_font, options.seed)
        tasks = of_share(range(options.count), options.part)
        run.extend(read_one, tasks, options.jobs, str, prepare, (corpus,))
    if options.part == "1/1":
        write(run, options.seed, options.calibration, options.out, options.docs)


if __name__ == "__main__":
    main()
