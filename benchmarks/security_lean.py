"""Whether some accounts are accused more often than others: bits of a latent codec that lean on unmarked pictures.

    python benchmarks/security_lean.py --pictures DIR DIR --folder RUN --codec vista --count 1800
    python benchmarks/security_lean.py --folder RUN --codec vista --report [--write]

What the codec's network says of unmarked pictures of several kinds, about half of them attacked. Two of three, of
the tune part, say what is to be left out; the others, of other files and seeds, say how often the worst secrets are
found: the one that agrees with every leaning bit, and those along the first principal direction of the bits. A
codec with a learned delta has its margins whitened (`latent/lean.py`), of one of initial noise what its estimates
have in common is left out (`latent/noise.py`); its bits lean differently under every operator key, so that is
measured under many. `--write` puts either into the codec's folder. A stop loses nothing.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import base64  # noqa: E402
import json  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import pixel_corpus  # noqa: E402
import security_tables  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Row, Run, fixed_keys  # noqa: E402

from diffmark.latent.calibration import Calibration  # noqa: E402
from diffmark.latent.config import NoiseConfig  # noqa: E402
from diffmark.latent.files import CONFIG_FILE, find_codec, read_config  # noqa: E402
from diffmark.latent.lean import Lean  # noqa: E402
from diffmark.latent.noise import KeyedPatterns  # noqa: E402
from diffmark.provenance import command_line, provenance  # noqa: E402
from diffmark.statistics import clopper_pearson, match_threshold  # noqa: E402

KINDS = {"painted scenes": 50, "files": 20, "windows of files": 20, "noise": 5, "gradients": 5}
STATED = 1e-3
RANDOM = 2000  # random secrets
FEWEST = 20  # pictures of a kind that is told apart
SEED = 77
LENGTH = 64
KEYS = 30  # operator keys, for codecs of initial noise
COMMON = NoiseConfig().common

_state: dict[str, Any] = {}


def prepare(codec: str, folders: list[Path]) -> None:
    import torch

    from diffmark.detection.latent import Detector

    torch.set_num_threads(1)
    pixel_corpus.KINDS = KINDS
    _state["detector"] = Detector.from_pretrained(codec)
    _state["corpus"] = pixel_corpus.Corpus(tuple(folders), Path(), None, SEED)


def read_one(number: int) -> Row:
    """The network's own margins, or estimate of the noise, of one unmarked picture."""
    import torch

    from diffmark.images import read_image
    from diffmark.latent.codec import NoiseCodec
    from diffmark.latent.vae import encode

    part = "test" if number % 3 == 2 else "tune"
    drawn, detector = _state["corpus"].draw(number, part), _state["detector"]
    pixels = torch.from_numpy(read_image(drawn.image).resized(detector.image_size).pixels())[None]
    row = {"id": str(number), "part": part, "kind": drawn.kind, "attacked": bool(drawn.attacks)}
    if isinstance(detector.codec, NoiseCodec):
        with torch.no_grad():
            estimate = detector.codec.decoder.estimate(encode(detector.vae, pixels)).flatten().numpy()
        return row | {"estimate": base64.b64encode(estimate.astype("<f2").tobytes()).decode()}
    return row | {"margins": [float(f"{margin:.4g}") for margin in detector.raw_margins(pixels)[0]]}


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


def rates(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> dict[str, Row]:
    """How often each worst secret, chosen on tune, is found in unmarked pictures of test; and random secrets.

    `pairs` are margins (N, L) of tune and test, under each of some keys; a picture is a trial under each.
    """
    hits: dict[str, list[int]] = {}
    for tune, test in pairs:
        bits, needed = test > 0, match_threshold(test.shape[1], STATED)
        for name, secret in worst_keys(tune).items():
            hits.setdefault(name, []).append(int(((bits == secret).sum(axis=1) >= needed).sum()))
        others = np.random.default_rng([SEED, 1]).integers(2, size=(RANDOM, test.shape[1])).astype(bool)
        found = sum(int(((one == others).sum(axis=1) >= needed).sum()) for one in bits)
        hits.setdefault(f"{RANDOM} random secrets", []).append(found)
    count = len(pairs[0][1])
    table = {}
    for name, found in hits.items():
        trials = count * (RANDOM if name.endswith("random secrets") else 1)
        table[name] = _rate(sum(found), trials * len(pairs))
        if len(pairs) > 1:
            table[name] |= {"keys": len(pairs), "worst_key": float(f"{max(found) / trials:.4g}")}
    return table


def rate_within(
    pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]], inside: dict[str, NDArray[np.bool_]]
) -> Row:
    """The three worst secrets of one kind of pictures alone, chosen and looked for among those."""
    hits = trials = 0
    for tune, test in pairs:
        bits = test[inside["test"]] > 0
        for secret in worst_keys(tune[inside["tune"]]).values():
            hits += int(((bits == secret).sum(axis=1) >= match_threshold(test.shape[1], STATED)).sum())
            trials += len(bits)
    return _rate(hits, trials)


def _rate(hits: int, trials: int) -> Row:
    low, high = clopper_pearson(hits, trials)
    return {
        "rate": float(f"{hits / trials:.4g}"),
        "interval_95": [float(f"{low:.3g}"), float(f"{high:.3g}")],
        "of": trials,
    }


def report(rows: list[Row]) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """The figures, and the tune part of what the network said: margins (N, L), or estimates (N, D)."""
    parts = {part: [row for row in rows if row["part"] == part] for part in pictures.PARTS}
    found: dict[str, Any] = {"pictures": {part: len(own) for part, own in parts.items()}, "stated": STATED}
    if "estimate" in rows[0]:
        said = {part: np.stack([_estimate(row) for row in own]) for part, own in parts.items()}
        unit = {part: one / np.linalg.norm(one, axis=1, keepdims=True) for part, one in said.items()}
        common = np.linalg.svd(unit["tune"], full_matrices=False)[2][:COMMON]
        rest = {part: one - (one @ common.T) @ common for part, one in unit.items()}
        raw, left = ([(one["tune"], one["test"]) for one in under_keys(each)] for each in (unit, rest))
    else:
        said = {part: np.array([row["margins"] for row in own]) for part, own in parts.items()}
        lean = Lean.measure(said["tune"])
        raw = [(said["tune"], said["test"])]
        left = [(lean.whitened(said["tune"]), lean.whitened(said["test"]))]
    found["largest_lean"] = {"raw": _largest(raw), "left": _largest(left)}
    before, after = rates(raw), rates(left)
    found["keys"] = {name: {"raw": before[name], "left": after[name]} for name in before}
    for kind in sorted({row["kind"] for row in rows}):
        inside = {part: np.array([row["kind"] == kind for row in own]) for part, own in parts.items()}
        if min(inside[part].sum() for part in inside) >= FEWEST:
            row = {"raw": rate_within(raw, inside), "left": rate_within(left, inside)}
            found["keys"][f"{kind} alone, worst secrets among them"] = row
    return found, said["tune"]


def _estimate(row: Row) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(row["estimate"]), "<f2").astype(float)


def under_keys(estimates: dict[str, NDArray[np.float64]]) -> list[dict[str, NDArray[np.float64]]]:
    """Scores (N, L) of both parts under each of KEYS keys."""
    keys = [
        KeyedPatterns(key, LENGTH, (next(iter(estimates.values())).shape[1], 1, 1))
        for key in fixed_keys(1 + KEYS)[1:]
    ]
    return [
        {part: one.scores(values[:, :, None, None]).astype(float) for part, values in estimates.items()}
        for one in keys
    ]


def _largest(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    """Lean of a bit on test, the largest; mean over keys."""
    return round(float(np.mean([np.abs((test > 0).mean(axis=0) - 0.5).max() for _, test in pairs])), 4)


def write_into(codec: str, tune: NDArray[np.float64]) -> None:
    """What is to be left out, in the place of what was there before."""
    folder = find_codec(codec)
    document = read_config(folder)
    if document.get("kind") == "noise":
        import torch

        from diffmark.latent.codec import Codec

        loaded = Codec.from_pretrained(folder)
        estimates = torch.from_numpy(tune.astype(np.float32)).view(len(tune), *loaded.keyed.shape)
        loaded.leave_out_common(estimates)
        loaded.save_pretrained(folder, torch.float16)
        return
    before = Calibration.from_dict(document["calibration"])
    document["calibration"] = replace(before, lean=Lean.measure(tune)).to_dict()
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path, nargs="+", default=[])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--codec", default="vista")
    parser.add_argument("--count", type=int, default=1800)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--write", action="store_true", help="with --report: into the codec's config")
    given = parser.parse_args()
    head_path = given.folder / "head.json"
    if given.report:
        rows = [json.loads(line) for line in (given.folder / "rows.jsonl").read_text().splitlines()]
        found, tune = report(rows)
        security_tables.write(
            security_tables.RESULTS / f"lean-{Path(given.codec).name}.json",
            {**json.loads(head_path.read_text()), **found},
        )
        if given.write:
            write_into(given.codec, tune)
        security_tables.fill_pages()
        return
    weights = read_config(find_codec(given.codec))["sha256"]
    config = {"codec": given.codec, "weights": weights, "kinds": KINDS, "seed": SEED}
    run = Run(given.folder, config, ("latent/codec", "latent/networks", "latent/noise", "latent/vae"))
    head_path.write_text(json.dumps(provenance(command_line(), config)))
    run.extend(read_one, range(given.count), 1, str, prepare, (given.codec, given.pictures))


if __name__ == "__main__":
    main()
