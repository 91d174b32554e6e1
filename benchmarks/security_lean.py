"""Whether some accounts are accused more often than others: bits of a latent codec that lean on unmarked pictures.

    python benchmarks/security_lean.py --pictures DIR DIR --folder RUN --count 1800
    python benchmarks/security_lean.py --folder RUN --report [--write]

The codec's margins of unmarked pictures of several kinds, about half of them attacked. Two of three, of the tune
part, give the whitening; the others, of other files and seeds, say how often the worst secrets are found: the one
that agrees with every leaning bit, and those along the first principal direction of the bits. `--write` puts the
whitening into the codec's config; its tail of the evidence stays, as whitening keeps an image's mean |margin|. A
stop loses nothing.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pixel_corpus  # noqa: E402
import security_tables  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Row, Run  # noqa: E402

from diffmark.latent.calibration import Calibration  # noqa: E402
from diffmark.latent.files import CONFIG_FILE, find_codec, read_config  # noqa: E402
from diffmark.latent.lean import Lean  # noqa: E402
from diffmark.provenance import command_line, provenance  # noqa: E402
from diffmark.statistics import clopper_pearson, match_threshold  # noqa: E402

KINDS = {"painted scenes": 50, "files": 20, "windows of files": 20, "noise": 5, "gradients": 5}
STATED = 1e-3
RANDOM = 2000  # random secrets
SEED = 77

_state: dict[str, Any] = {}


def prepare(codec: str, folders: list[Path]) -> None:
    import torch

    from diffmark.detection.latent import Detector

    torch.set_num_threads(1)
    pixel_corpus.KINDS = KINDS
    _state["detector"] = Detector.from_pretrained(codec)
    _state["corpus"] = pixel_corpus.Corpus(tuple(folders), Path(), None, SEED)


def read_one(number: int) -> Row:
    """The network's own margins of one unmarked picture."""
    import torch

    from diffmark.images import read_image

    part = "test" if number % 3 == 2 else "tune"
    drawn, detector = _state["corpus"].draw(number, part), _state["detector"]
    pixels = torch.from_numpy(read_image(drawn.image).resized(detector.image_size).pixels())[None]
    margins = detector.raw_margins(pixels)[0]
    row = {"id": str(number), "part": part, "kind": drawn.kind, "attacked": bool(drawn.attacks)}
    return row | {"margins": [float(f"{margin:.4g}") for margin in margins]}


def worst_keys(margins: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
    """Secrets that agree most with what unmarked pictures say: along the lean, and along what bits do together."""
    signs = np.sign(margins)
    centred = signs - signs.mean(axis=0)
    first = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    return {
        "the secret of all leaning bits": signs.mean(axis=0) > 0,
        "the secret of the first principal direction": first > 0,
        "its complement": first < 0,
    }


def rates(tune: NDArray[np.float64], test: NDArray[np.float64]) -> dict[str, Row]:
    """How often each worst secret, chosen on tune, is found in unmarked pictures of test; and random secrets."""
    bits, needed = test > 0, match_threshold(test.shape[1], STATED)
    found = {
        name: _rate(int(((bits == key).sum(axis=1) >= needed).sum()), len(test))
        for name, key in worst_keys(tune).items()
    }
    others = np.random.default_rng([SEED, 1]).integers(2, size=(RANDOM, test.shape[1])).astype(bool)
    hits = sum(int(((one == others).sum(axis=1) >= needed).sum()) for one in bits)
    found[f"{RANDOM} random secrets"] = _rate(hits, len(test) * RANDOM)
    return found


def _rate(hits: int, trials: int) -> Row:
    low, high = clopper_pearson(hits, trials)
    return {
        "rate": float(f"{hits / trials:.4g}"),
        "interval_95": [float(f"{low:.3g}"), float(f"{high:.3g}")],
        "of": trials,
    }


def report(rows: list[Row]) -> tuple[dict[str, Any], NDArray[np.float64]]:
    margins = {part: np.array([r["margins"] for r in rows if r["part"] == part]) for part in pictures.PARTS}
    lean = Lean.measure(margins["tune"])
    white = {part: lean.whitened(values) for part, values in margins.items()}
    raw, whitened = rates(margins["tune"], margins["test"]), rates(white["tune"], white["test"])
    found = {
        "pictures": {part: len(values) for part, values in margins.items()},
        "stated": STATED,
        "largest_lean": {
            "raw": round(float(np.abs((margins["test"] > 0).mean(axis=0) - 0.5).max()), 4),
            "whitened": round(float(np.abs((white["test"] > 0).mean(axis=0) - 0.5).max()), 4),
        },
        "keys": {name: {"raw": raw[name], "whitened": whitened[name]} for name in raw},
    }
    return found, margins["tune"]


def write_calibration(codec: str, tune: NDArray[np.float64]) -> None:
    """The whitening in the place of the one before."""
    folder = find_codec(codec)
    document = read_config(folder)
    before = Calibration.from_dict(document["calibration"])
    document["calibration"] = replace(before, lean=Lean.measure(tune)).to_dict()
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, nargs="+", default=[])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--codec", default="vista-final")
    parser.add_argument("--count", type=int, default=1800)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --report: into the codec's config")
    given = parser.parse_args()
    head_path = given.folder / "head.json"
    if given.report:
        rows = [json.loads(line) for line in (given.folder / "rows.jsonl").read_text().splitlines()]
        found, tune = report(rows)
        security_tables.write(
            security_tables.RESULTS / "lean.json", {**json.loads(head_path.read_text()), **found}
        )
        if given.write:
            write_calibration(given.codec, tune)
        security_tables.fill_pages()
        return
    weights = read_config(find_codec(given.codec))["sha256"]
    config = {"codec": given.codec, "weights": weights, "kinds": KINDS, "seed": SEED}
    run = Run(given.folder, config, ("latent/codec", "latent/networks", "latent/vae"))
    head_path.write_text(json.dumps(provenance(command_line(), config)))
    run.extend(read_one, range(given.count), 1, str, prepare, (given.codec, given.pictures))


if __name__ == "__main__":
    main()
