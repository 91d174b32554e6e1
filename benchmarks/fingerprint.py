"""Which perceptual fingerprint finds a marked picture again, and how often, among a million others.

    python benchmarks/fingerprint.py entries --pictures DIR DIR --folder RUN     # a few minutes each
    python benchmarks/fingerprint.py queries --pictures DIR DIR --folder RUN --part tune
    python benchmarks/fingerprint.py queries --pictures DIR DIR --folder RUN --part test --count 300
    python benchmarks/fingerprint.py windows --pictures DIR DIR --folder RUN --count 40000
    python benchmarks/fingerprint.py report --pictures DIR DIR --folder RUN   # writes results/fingerprint.json

Candidates are ISCC Image-Codes of 64 and 256 bits and PDQ (256 bits), each with the picture as it comes, in its
eight rotations and mirror images, or in these with and without a plain border. Method, threshold and views are
chosen on the tune part alone; recall is that of the test part. No picture of one part is in the other.

The million entries are random windows (15% to 100% of the area) of every other picture of the tune part: all real
picture content, but of a few hundred pictures, so that entries of one picture are alike. Queries are of other
pictures than the entries', so every match with an entry is false.

The threshold is the largest distance at which no look-up of the tune part, attacked or not, finds an entry. False
look-ups of the test part are counted three ways: pictures as they are, attacked ones, and random windows of them.
A look-up compares all its views with all entries; the bound on a pair takes pairs as independent, which those of a
few hundred pictures are not, and the bound on a look-up takes look-ups so. FPR 1e-6 a look-up among 1e6 entries
would take three million look-ups of as many different pictures.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pdqhash  # noqa: E402
from numba import njit  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Run, files  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402
from pixel_attacks import COMBINED, HARSH, KEPT, MOVED  # noqa: E402
from scipy.fft import dctn  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.fingerprint import SIDE, THRESHOLD, VIEWS, thumbnail, trimmed  # noqa: E402
from diffmark.pixel.codec import PixelCodec  # noqa: E402
from diffmark.provenance import provenance  # noqa: E402
from diffmark.registry.fingerprints import nearest  # noqa: E402
from diffmark.registry.kernels import popcount  # noqa: E402
from diffmark.statistics import clopper_pearson  # noqa: E402

RESULTS = Path(__file__).parents[1] / "results" / "fingerprint.json"
ENTRIES, CHUNK = 1_000_000, 10_000
ALL_VIEWS = 2 * len(VIEWS)  # with and without a plain border
METHODS = ("iscc64", "iscc256", "pdq")
Words = NDArray[np.uint64]


def views_of(image: Image.Image) -> list[Image.Image]:
    """Thumbnails in all views: eight, and eight more of what is inside a plain border."""
    inner = trimmed(image)
    thumbs = [thumbnail(image)] + ([] if inner is None else [thumbnail(inner)])
    return [thumb if view is None else thumb.transpose(view) for thumb in thumbs for view in VIEWS]


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


def window(sources: list[Image.Image], rng: np.random.Generator) -> Image.Image:
    """A random window of a random picture, 15% to 100% of its area, as a thumbnail."""
    image = sources[int(rng.integers(len(sources)))]
    share, stretch = rng.uniform(0.15, 1) ** 0.5, np.exp(rng.uniform(-0.3, 0.3))
    width = min(image.width, round(image.width * share * stretch))
    height = min(image.height, round(image.height * share / stretch))
    x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    thumb = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (x, y, x + width, y + height), 2.0)
    return ImageOps.mirror(thumb) if rng.random() < 0.5 else thumb


def make_entries(folders: list[Path], folder: Path) -> None:
    sources = [Image.open(path).convert("L") for path in parted(folders, "entries")]
    for number in tqdm(range(ENTRIES // CHUNK), "entries", disable=None):
        path = folder / f"entries-{number:03d}.npz"
        if path.exists():
            continue
        rng = np.random.default_rng([7, number])
        codes, hashes, quality = both([window(sources, rng) for _ in range(CHUNK)])
        part = path.with_suffix(".part.npz")
        np.savez(part, iscc=codes, pdq=hashes, quality=quality)
        part.rename(path)


def load_entries(folder: Path) -> dict[str, Words]:
    parts = [np.load(path) for path in sorted(folder.glob("entries-???.npz"))]
    entries = {name: np.concatenate([part[name] for part in parts]) for name in ("iscc", "pdq")}
    if len(entries["iscc"]) != ENTRIES:
        raise SystemExit(f"{len(entries['iscc']):,} entries are there: make the rest first")
    return entries


def make_windows(folders: list[Path], folder: Path, count: int) -> None:
    """How many windows of pictures of the test part are taken for an entry, as the package looks them up."""
    words, keys = np.asfortranarray(load_entries(folder)["pdq"]), np.arange(ENTRIES)
    sources = [Image.open(path).convert("L") for path in parted(folders, "test")]
    rng, false = np.random.default_rng([9]), 0
    for _ in tqdm(range(count), "windows", disable=None):
        views = np.stack([pdq(view)[0] for view in views_of(window(sources, rng))])
        false += nearest(words, keys, views)[0] <= THRESHOLD
    found = {"lookups": count, "threshold": THRESHOLD, "views": len(VIEWS), "false": false}
    (folder / "windows.json").write_text(json.dumps(found))


def search_time() -> dict[str, Any]:
    """CPU time of a look-up of eight views among 1e7 random entries."""
    rng = np.random.default_rng(10)
    words = np.asfortranarray(rng.integers(0, 2**64, (10_000_000, 4), np.uint64))
    keys, seconds = np.arange(len(words)), []
    for turn in range(11):
        views = rng.integers(0, 2**64, (len(VIEWS), 4), np.uint64)
        start = time.process_time()
        nearest(words, keys, views)
        seconds.append(time.process_time() - start if turn else 0.0)  # the first one compiles
    return {
        "entries": len(words),
        "views": len(VIEWS),
        "cpu_seconds": round(float(np.median(seconds[1:])), 4),
    }


def make_queries(folders: list[Path], folder: Path, part: str, count: int) -> None:
    attacks = {**KEPT, **MOVED, **COMBINED, **HARSH}
    listed = parted(folders, part)
    chosen = [listed[index] for index in np.linspace(0, len(listed) - 1, min(count, len(listed))).astype(int)]
    codec = PixelCodec()

    def work(path: Path) -> dict[str, Any]:
        rng = np.random.default_rng([8, int(path.stem)])
        image = Image.open(path).convert("RGB")
        marked = codec.embed(image, rng.integers(0, 2, codec.length).astype(np.uint8)).image
        codes, hashes, quality = both([thumbnail(marked)])
        row: dict[str, Any] = {"id": f"{path.parent.name}/{path.name}", "quality": int(quality[0])}
        row["logged"] = {"iscc": codes[0].tolist(), "pdq": hashes[0].tolist()}
        for name, attack in attacks.items():
            codes, hashes, quality = both(views_of(attack(marked, rng)))
            row[name] = {"iscc": codes.tolist(), "pdq": hashes.tolist(), "quality": int(quality[0])}
        return row

    run = Run(folder / part, {"part": part, "count": count}, ("pixel/codec", "pixel/writer"))
    run.extend(work, chosen, 1, lambda path: f"{path.parent.name}/{path.name}")


# --- what follows from them --------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def distances(queries, entries, words, least):  # type: ignore[no-untyped-def]
    """least[q]: in how many bits of the first `words` words a query differs from the nearest entry."""
    for first in range(0, len(entries), 4096):
        last = min(first + 4096, len(entries))
        for q in range(len(queries)):
            for i in range(first, last):
                d = np.uint64(0)
                for w in range(words):
                    d += popcount(queries[q, w] ^ entries[i, w])
                least[q] = min(least[q], np.int64(d))


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
            [padded(row[name][kind]) for row in found for name in names(row)],
            np.uint64,
        )
        for kind in ("iscc", "pdq")
    }
    return found, queries


def padded(views: list[Any]) -> list[Any]:
    """As many views for a picture without a border as for one that has one."""
    return views if len(views) == ALL_VIEWS else [*views, *views]


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
    found = [both(views_of(Image.open(path).convert("RGB"))) for path in parted(folders, part)]
    return {
        kind: np.array([padded(list(words[place])) for words in found], np.uint64)
        for place, kind in enumerate(("iscc", "pdq"))
    }


def report(folders: list[Path], folder: Path) -> None:
    entries = load_entries(folder)
    rows, attacked = load(folder, "tune")
    plain = plain_queries(folders, "tune")
    choices: list[dict[str, Any]] = []
    for method in METHODS:
        kind = "pdq" if method == "pdq" else "iscc"
        queries = np.concatenate([plain[kind], attacked[kind]])
        for views, least in least_by_views(method, queries, entries[kind]).items():
            limit = int(least.min()) - 1
            choice = {"method": method, "views": views, "threshold": limit, "lookups": len(least)}
            choices.append(choice | {"recall": mean(recalls(rows, method, limit, views))})
            print(choices[-1])
    best = max(choices, key=lambda choice: choice["recall"])
    method, views = best["method"], best["views"]
    rows, attacked = load(folder, "test")
    kind = "pdq" if method == "pdq" else "iscc"
    plain = plain_queries(folders, "test")
    least_plain = least_by_views(method, plain[kind], entries[kind])[views]
    some = attacked[kind][
        : len(names(rows[0])) * 60
    ]  # of the first 60 pictures: the curve needs all distances
    least_attacked = least_by_views(method, some, entries[kind])[views]
    found = recalls(rows, method, best["threshold"], views)
    groups = {"kept": KEPT, "moved": MOVED, "combined": COMBINED, "harsh": HARSH}
    windows = json.loads((folder / "windows.json").read_text())
    test: dict[str, Any] = {
        "pictures": len(rows),
        "recall": mean(found),
        "groups": {name: mean({a: found[a] for a in group}) for name, group in groups.items()},
        "false": false_rate(least_plain, best["threshold"]),
        "false_after_attacks": false_rate(least_attacked, best["threshold"]),
        "false_windows": counted(windows["false"], windows["lookups"]) | {"threshold": windows["threshold"]},
        "attacks": found,
        "curve": [
            {"threshold": limit, "recall": mean(recalls(rows, method, limit, views))}
            | {"false": false_rate(least_plain, limit)}
            | {"false_after_attacks": false_rate(least_attacked, limit)}
            for limit in range(8, 72, 4)
        ],
    }
    lookups = windows["lookups"] * windows["views"] + (len(least_plain) + len(least_attacked)) * views
    false = windows["false"] + test["false"][0] + test["false_after_attacks"][0]
    test["pairs"] = counted(false, lookups * ENTRIES)
    config = {"entries": ENTRIES, "seed": [7, 8, 9, 10], "chosen_on": "tune", "goal": "FPR 1e-6 among 1e6"}
    document = provenance(
        "python benchmarks/fingerprint.py report --pictures PHOTOGRAPHS --folder RUN", config
    )
    document |= {"choices": choices, "chosen": best, "test": test, "search": search_time()}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    shown = {name: value for name, value in test.items() if name not in ("attacks", "curve")}
    print(json.dumps({"chosen": best, **shown, "search": document["search"]}))


def least_by_views(method: str, queries: Words, entries: Words) -> dict[int, NDArray[np.int64]]:
    """For 1, 8 and 16 views: the distance of each look-up (n, views, 4) to the nearest entry, all of them false."""
    unique, back = np.unique(queries.reshape(-1, 4), axis=0, return_inverse=True)
    words, least = 1 if method == "iscc64" else 4, np.full(len(unique), 999)
    for start in tqdm(range(0, len(unique), 256), method, disable=None):
        block = slice(start, start + 256)
        distances(unique[block], entries, words, least[block])
    by_view = least[back.ravel()].reshape(len(queries), -1)
    return {views: by_view[:, :views].min(axis=1) for views in (1, len(VIEWS), ALL_VIEWS)}


def counted(false: int, of: int) -> dict[str, Any]:
    """A number of false ones, and an exact interval of their rate."""
    low, high = clopper_pearson(false, of)
    return {"false": false, "of": of, "interval_95": [low, high]}


def false_rate(nearest: NDArray[np.int64], limit: int) -> list[float]:
    """[false look-ups, of, low, high]: an exact interval of the rate of a look-up among all entries."""
    false = int((nearest <= limit).sum())
    low, high = clopper_pearson(false, len(nearest))
    return [false, len(nearest), round(low, 6), round(high, 6)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("entries", "queries", "windows", "report"))
    parser.add_argument("--pictures", type=Path, nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--part", choices=("tune", "test"), default="tune")
    parser.add_argument("--count", type=int, default=100, help="pictures of the part, or windows")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.stage == "entries":
        make_entries(options.pictures, options.folder)
    elif options.stage == "queries":
        make_queries(options.pictures, options.folder, options.part, options.count)
    elif options.stage == "windows":
        make_windows(options.pictures, options.folder, options.count)
    else:
        report(options.pictures, options.folder)


if __name__ == "__main__":
    main()
