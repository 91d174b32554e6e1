"""Which perceptual fingerprint finds a marked picture again, and how often, among a million others.

    python benchmarks/fingerprint.py entries --pictures DIR DIR --folder RUN     # about half an hour
    python benchmarks/fingerprint.py queries --pictures DIR DIR --folder RUN --part tune
    python benchmarks/fingerprint.py queries --pictures DIR DIR --folder RUN --part test
    python benchmarks/fingerprint.py report --pictures DIR DIR --folder RUN   # writes results/fingerprint.json

Candidates are ISCC Image-Codes of 64 and 256 bits and PDQ (256 bits), each with the picture as it comes or in
its eight rotations and mirror images. Method, threshold and whether to turn are chosen on the tune part alone;
recall is that of the test part. No picture of one part is in the other.

The million entries are random windows (15% to 100% of the area) of every other picture of the tune part: all real
picture content, but of a few hundred pictures, so that entries of one picture are alike. Queries are of other
pictures than the entries', so every match with an entry is false.

The threshold is the largest distance at which no look-up of the tune part, attacked or not, finds an entry. FPR
1e-6 among 1e6 would be 1e-12 a pair, and these pictures are too few to show it: what is published is the number of
false look-ups of the test part with its interval, and the curve of recall and false look-ups over the threshold.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pdqhash  # noqa: E402
from numba import njit  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Run, files  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_robustness import COMBINED, HARSH, KEPT, MOVED  # noqa: E402
from scipy.fft import dctn  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.pixel.codec import PixelCodec  # noqa: E402
from diffmark.provenance import provenance  # noqa: E402
from diffmark.registry.kernels import popcount  # noqa: E402
from diffmark.statistics import clopper_pearson  # noqa: E402

RESULTS = Path(__file__).parents[1] / "results" / "fingerprint.json"
ENTRIES, CHUNK = 1_000_000, 10_000
SIDE = 64  # of the grey thumbnail that both fingerprints are made of
VIEWS = (None, *Image.Transpose)  # as it comes, and turned or mirrored
METHODS = ("iscc64", "iscc256", "pdq")
Words = NDArray[np.uint64]


def thumbnail(image: Image.Image, box: tuple[int, int, int, int] | None = None) -> Image.Image:
    return image.convert("L").resize((SIDE, SIDE), Image.Resampling.BICUBIC, box)


def iscc(thumbs: NDArray[np.uint8]) -> Words:
    """ISCC Image-Codes (n, 4) of grey pictures (n, 32, 32), as `iscc_core.soft_hash_image_v0` makes them."""
    spectrum = dctn(thumbs.astype(np.float64), axes=(1, 2))
    words = []
    for x, y in ((0, 0), (8, 0), (0, 8), (8, 8)):
        values = spectrum[:, y : y + 8, x : x + 8].reshape(len(thumbs), 64)
        bits = values > np.median(values, axis=1, keepdims=True)
        words.append(np.packbits(bits, axis=1).view(">u8").astype(np.uint64)[:, 0])
    return np.stack(words, axis=1)


def pdq(thumb: Image.Image) -> tuple[Words, int]:
    bits, quality = pdqhash.compute(np.asarray(thumb.convert("RGB")))
    return np.packbits(bits).view(">u8").astype(np.uint64), int(quality)


def both(thumbs: list[Image.Image]) -> tuple[Words, Words, NDArray[np.int64]]:
    """ISCC (n, 4), PDQ (n, 4) and PDQ's quality (n,)."""
    small = np.stack([np.asarray(thumb.resize((32, 32), Image.Resampling.BOX)) for thumb in thumbs])
    found = [pdq(thumb) for thumb in thumbs]
    return iscc(small), np.stack([word for word, _ in found]), np.array([quality for _, quality in found])


def parted(folders: list[Path], part: str) -> list[Path]:
    """Pictures of `entries` (every other one of the tune part), `tune` (the rest of it) or `test`."""
    if part == "test":
        return [path for folder in folders for path in files(folder, "test")]
    return [path for folder in folders for path in files(folder, "tune")[0 if part == "entries" else 1 :: 2]]


def make_entries(folders: list[Path], folder: Path) -> None:
    sources = [Image.open(path).convert("L") for path in parted(folders, "entries")]
    for number in tqdm(range(ENTRIES // CHUNK), "entries", disable=None):
        path = folder / f"entries-{number:03d}.npz"
        if path.exists():
            continue
        rng = np.random.default_rng([7, number])
        thumbs = []
        for _ in range(CHUNK):
            image = sources[int(rng.integers(len(sources)))]
            share, stretch = rng.uniform(0.15, 1) ** 0.5, np.exp(rng.uniform(-0.3, 0.3))
            width = min(image.width, round(image.width * share * stretch))
            height = min(image.height, round(image.height * share / stretch))
            x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
            thumb = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (x, y, x + width, y + height), 2.0)
            thumbs.append(ImageOps.mirror(thumb) if rng.random() < 0.5 else thumb)
        codes, hashes, quality = both(thumbs)
        part = path.with_suffix(".part.npz")
        np.savez(part, iscc=codes, pdq=hashes, quality=quality)
        part.rename(path)


def make_queries(folders: list[Path], folder: Path, part: str, count: int) -> None:
    attacks = {**KEPT, **MOVED, **COMBINED, **HARSH}
    listed = parted(folders, part)
    chosen = [listed[index] for index in np.linspace(0, len(listed) - 1, count).astype(int)]
    codec = PixelCodec()

    def work(path: Path) -> dict[str, Any]:
        rng = np.random.default_rng([8, int(path.stem)])
        image = Image.open(path).convert("RGB")
        marked = codec.embed(image, rng.integers(0, 2, codec.length).astype(np.uint8)).image
        codes, hashes, quality = both([thumbnail(marked)])
        row: dict[str, Any] = {"id": f"{path.parent.name}/{path.name}", "quality": int(quality[0])}
        row["logged"] = {"iscc": codes[0].tolist(), "pdq": hashes[0].tolist()}
        for name, attack in attacks.items():
            thumb = thumbnail(attack(marked, rng))
            codes, hashes, quality = both([thumb.transpose(t) if t is not None else thumb for t in VIEWS])
            row[name] = {"iscc": codes.tolist(), "pdq": hashes.tolist(), "quality": int(quality[0])}
        return row

    run = Run(folder / part, {"part": part, "count": count}, ("pixel/codec", "pixel/writer"))
    run.extend(work, chosen, 1, lambda path: f"{path.parent.name}/{path.name}")


# --- what follows from them --------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def histogram(queries, entries, words, counts, nearest):  # type: ignore[no-untyped-def]
    """Add to counts[d] how many pairs differ in d bits of the first `words` words; nearest[q]: the least d."""
    for first in range(0, len(entries), 4096):
        last = min(first + 4096, len(entries))
        for q in range(len(queries)):
            for i in range(first, last):
                d = np.uint64(0)
                for w in range(words):
                    d += popcount(queries[q, w] ^ entries[i, w])
                counts[np.int64(d)] += 1
                nearest[q] = min(nearest[q], np.int64(d))


def negatives(method: str, queries: Words, entries: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    words = 1 if method == "iscc64" else 4
    counts, nearest = np.zeros(64 * words + 1, np.int64), np.full(len(queries), 999)
    for start in tqdm(range(0, len(queries), 256), method, disable=None):
        block = slice(start, start + 256)
        histogram(queries[block], entries, words, counts, nearest[block])
    return counts, nearest


def distance(first: Words, second: Words, words: int) -> NDArray[np.int64]:
    different = first[..., :words] ^ second[..., :words]
    bits = np.unpackbits(np.ascontiguousarray(different).view(np.uint8), axis=-1)
    return bits.reshape(*different.shape[:-1], -1).sum(axis=-1)


def load(folder: Path, part: str) -> tuple[list[dict[str, Any]], dict[str, Words]]:
    """Rows of a part and its queries (all attacks, all views) by kind."""
    rows = Run.__new__(Run)
    rows.rows_path = folder / part / "rows.jsonl"
    found = rows.rows()
    queries = {
        kind: np.array(
            [row[name][kind] for row in found for name in names(row)],
            np.uint64,
        )
        for kind in ("iscc", "pdq")
    }
    return found, queries


def names(row: dict[str, Any]) -> list[str]:
    return [name for name in row if name not in ("id", "quality", "logged")]


def recalls(rows: list[dict[str, Any]], method: str, limit: int, views: int) -> dict[str, Any]:
    """Share of pictures found after each attack: [found, of, low, high]."""
    kind, words = ("pdq", 4) if method == "pdq" else ("iscc", 1 if method == "iscc64" else 4)
    found = {}
    for name in names(rows[0]):
        hits = 0
        for row in rows:
            logged = np.array(row["logged"][kind], np.uint64)
            hits += bool(distance(np.array(row[name][kind][:views], np.uint64), logged, words).min() <= limit)
        low, high = clopper_pearson(hits, len(rows))
        found[name] = [hits, len(rows), round(low, 4), round(high, 4)]
    return found


def mean(found: dict[str, Any]) -> float:
    return float(np.mean([hits / of for hits, of, *_ in found.values()]))


def plain_queries(folders: list[Path], part: str) -> dict[str, Words]:
    """Every picture of a part as it is, in all views: more different pictures than are attacked."""
    thumbs = [thumbnail(Image.open(path).convert("RGB")) for path in parted(folders, part)]
    codes, hashes, _ = both(
        [thumb.transpose(t) if t is not None else thumb for thumb in thumbs for t in VIEWS]
    )
    return {"iscc": codes.reshape(-1, len(VIEWS), 4), "pdq": hashes.reshape(-1, len(VIEWS), 4)}


def report(folders: list[Path], folder: Path) -> None:
    parts = [np.load(path) for path in sorted(folder.glob("entries-???.npz"))]
    entries = {name: np.concatenate([part[name] for part in parts]) for name in ("iscc", "pdq")}
    if len(entries["iscc"]) != ENTRIES:
        raise SystemExit(f"{len(entries['iscc']):,} entries are there: make the rest first")
    rows, attacked = load(folder, "tune")
    plain = plain_queries(folders, "tune")
    choices = []
    for method in METHODS:
        kind = "pdq" if method == "pdq" else "iscc"
        for views in (1, len(VIEWS)):
            queries = np.concatenate([plain[kind], attacked[kind]])
            nearest = nearest_false(method, queries[:, :views], entries[kind])
            limit = int(nearest.min()) - 1
            choice = {"method": method, "views": views, "threshold": limit, "lookups": len(nearest)}
            choices.append(choice | {"recall": mean(recalls(rows, method, limit, views))})
            print(choices[-1])
    best = max(choices, key=lambda choice: choice["recall"])
    method, views = best["method"], best["views"]
    rows, attacked = load(folder, "test")
    kind = "pdq" if method == "pdq" else "iscc"
    plain = plain_queries(folders, "test")
    nearest = nearest_false(method, plain[kind][:, :views], entries[kind])
    nearest_attacked = nearest_false(method, attacked[kind][:, :views], entries[kind])
    found = recalls(rows, method, best["threshold"], views)
    groups = {"kept": KEPT, "moved": MOVED, "combined": COMBINED, "harsh": HARSH}
    test = {
        "pictures": len(rows),
        "recall": mean(found),
        "groups": {name: mean({a: found[a] for a in group}) for name, group in groups.items()},
        "false": false_rate(nearest, best["threshold"]),
        "false_after_attacks": false_rate(nearest_attacked, best["threshold"]),
        "attacks": found,
        "curve": [
            {"threshold": limit, "recall": mean(recalls(rows, method, limit, views))}
            | {
                "false": false_rate(nearest, limit),
                "false_after_attacks": false_rate(nearest_attacked, limit),
            }
            for limit in range(8, 72, 4)
        ],
    }
    config = {"entries": ENTRIES, "seed": [7, 8], "chosen_on": "tune", "goal": "FPR 1e-6 among 1e6"}
    document = provenance(
        "python benchmarks/fingerprint.py report --pictures PHOTOGRAPHS --folder RUN", config
    )
    document |= {"choices": choices, "chosen": best, "test": test}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({"chosen": best, **{k: v for k, v in test.items() if k not in ("attacks", "curve")}}))


def nearest_false(method: str, queries: Words, entries: Words) -> NDArray[np.int64]:
    """Distance of each look-up (n, views, 4) to the nearest entry, all of which are of other pictures."""
    flat = np.ascontiguousarray(queries.reshape(-1, 4))
    return negatives(method, flat, entries)[1].reshape(len(queries), -1).min(axis=1)


def false_rate(nearest: NDArray[np.int64], limit: int) -> list[float]:
    """[false look-ups, of, low, high]: an exact interval of the rate of a look-up among all entries."""
    false = int((nearest <= limit).sum())
    low, high = clopper_pearson(false, len(nearest))
    return [false, len(nearest), round(low, 6), round(high, 6)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("entries", "queries", "report"))
    parser.add_argument("--pictures", type=Path, nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--part", choices=("tune", "test"), default="tune")
    parser.add_argument("--count", type=int, default=100, help="pictures of the part")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "entries":
        make_entries(options.pictures, options.folder)
    elif options.stage == "queries":
        make_queries(options.pictures, options.folder, options.part, options.count)
    else:
        report(options.pictures, options.folder)


if __name__ == "__main__":
    main()
