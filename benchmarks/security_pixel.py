"""The pixel layer under attack: removal, forgery, collusion, and what a stranger learns.

    python benchmarks/security_pixel.py --pictures DIR DIR --folder RUN
    python benchmarks/security_pixel.py --folder RUN --report

Settings of attacks are chosen on victims of the tune part and reported on victims of the test part
(`pictures.split`); pictures that an attacker has seen are others of the tune part. A stop loses nothing: the same
command goes on, and `--report` writes results/security/pixel.json and the tables of docs/threat-model.md.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cache, cached_property, partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import security_attacks as attacks  # noqa: E402
import security_tables  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from pictures import Row, Run, files, fixed_keys  # noqa: E402
from PIL import Image, ImageFilter, ImageOps  # noqa: E402
from scipy import stats  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.detection.pixel import PixelDetector  # noqa: E402
from diffmark.pixel.codec import PixelCodec  # noqa: E402
from diffmark.pixel.visibility import Visibility  # noqa: E402
from diffmark.provenance import command_line, provenance  # noqa: E402
from diffmark.secret import Bits, to_hex  # noqa: E402
from diffmark.statistics import clopper_pearson, family_wise, per_try, soft_cost, soft_tail, soft_weights  # noqa: E402

FPR = 1e-3  # of the verdict with the secret
ACCOUNTS, RATE = 10**6, 1e-6  # of the verdict that names one of so many accounts, family-wise
SEEN = (1, 10, 30, 100, 300, 1000)
ONE_SECRET = 10  # pictures of one secret at most
STRENGTHS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # grey levels RMS, of what is added or taken away
LEAST_QUALITY = 60.0  # SSIMULACRA2 of an attacked picture that is still worth having
REMOVED = 0.1  # share still found at which a removal has won
COLLUDERS = (1, 2, 3, 5, 10)
COPIED = 3  # pictures that every account has a copy of
QUESTIONS = 1000
ROTATION = 7.0  # degrees
SIDE = 512
SEED = 24
MODULES = (*pictures.WRITER, "detection/decision", "detection/pixel")


@dataclass(frozen=True, eq=False)
class Victim:
    """A picture with and without its mark."""

    cover: Image.Image
    marked: Image.Image
    secret: Bits


class Experiment:
    """Pictures, keys and marks of one run; what takes long is kept in the run's folder."""

    def __init__(self, folders: list[Path], folder: Path, victims: int, tuning: int, pool: int) -> None:
        self.folders, self.folder = folders, folder
        self.counts = {"test": victims, "tune": tuning}
        self.pool_size = pool
        public, private, other = fixed_keys(3)
        self.public, self.private, self.other = (PixelCodec(key) for key in (public, private, other))
        self.detectors = {id(codec): PixelDetector(codec, fpr=FPR) for codec in (self.public, self.private)}

    def secrets(self, number: int, count: int) -> Bits:
        return np.random.default_rng([SEED, number]).integers(2, size=(count, 64), dtype=np.uint8)

    def paths(self, part: str) -> list[Path]:
        """Victims of a part, spread over the folders and over each of them."""
        count, found = self.counts[part], []
        for index, folder in enumerate(self.folders):
            listed = files(folder, part)
            share = count // len(self.folders) + (index < count % len(self.folders))
            found += [listed[i] for i in np.linspace(0, len(listed) - 1, share).astype(int)]
        return found

    def covers(self, part: str) -> list[Image.Image]:
        return [opened(path) for path in self.paths(part)]

    @cache  # noqa: B019 - one experiment a process
    def victims(self, part: str, public: bool = False) -> list[Victim]:
        codec = self.public if public else self.private
        covers = self.covers(part)
        secrets = self.secrets(1 + (part == "test"), len(covers))
        return [
            Victim(cover, self.kept(codec, cover, secret, f"{part}-{number}"), secret)
            for number, (cover, secret) in enumerate(zip(covers, secrets, strict=True))
        ]

    def kept(self, codec: PixelCodec, cover: Image.Image, secret: Bits, name: str) -> Image.Image:
        """A marked picture, made once."""
        path = self.folder / "marked" / f"{name}-{codec.key.id}-{to_hex(secret)}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            codec.embed(cover, secret).image.save(path.with_suffix(".part"), "PNG")
            path.with_suffix(".part").replace(path)
        return Image.open(path).convert("RGB")

    def seen(self, count: int) -> Iterator[Image.Image]:
        """Unmarked pictures of the tune part that are no victims; windows of them after the last."""
        victims = set(self.paths("tune"))
        listed = [path for folder in self.folders for path in files(folder, "tune") if path not in victims]
        whole = [listed[i] for i in np.random.default_rng([SEED, 3]).permutation(len(listed))]
        for number in range(count):
            image = opened(whole[number % len(whole)])
            if number >= len(whole):
                rng = np.random.default_rng([SEED, 4, number])
                side = int(rng.uniform(0.5, 0.8) * min(image.size))
                x, y = (int(rng.integers(length - side + 1)) for length in image.size)
                image = image.crop((x, y, x + side, y + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
            yield image

    def pool(self, one_secret: bool) -> attacks.Pool:
        """What the attacker has seen: marked pictures under the private key."""
        return self.one if one_secret else self.fresh

    @cached_property
    def one(self) -> attacks.Pool:
        return self._pool(np.repeat(self.secrets(5, 1), min(self.pool_size, ONE_SECRET), axis=0), "one")

    @cached_property
    def fresh(self) -> attacks.Pool:
        return self._pool(self.secrets(6, self.pool_size), "fresh")

    def _pool(self, secrets: Bits, name: str) -> attacks.Pool:
        rows = []
        pairs = zip(self.seen(len(secrets)), secrets, strict=True)
        for number, (cover, secret) in enumerate(tqdm(pairs, f"pool, {name}", len(secrets), disable=None)):
            rows.append(attacks.features(self.kept(self.private, cover, secret, f"{name}-{number:04d}")))
        return attacks.Pool(np.stack(rows), secrets)

    @cache  # noqa: B019
    def tones(self, count: int) -> NDArray[np.float64]:
        """Frequencies of tones that so many pictures of fresh secrets give away."""
        pairs = zip(self.seen(count), self.secrets(6, count), range(count), strict=True)
        seen = (self.kept(self.private, cover, secret, f"fresh-{i:04d}") for cover, secret, i in pairs)
        return attacks.tones_of(np.mean([attacks.tone_spectrum(image) for image in seen], axis=0))


def opened(path: Path) -> Image.Image:
    return ImageOps.contain(Image.open(path).convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)


# --- measuring ---------------------------------------------------------------------------------------------


def read(lab: Experiment, codec: PixelCodec, images: list[Image.Image], secrets: Bits) -> list[Row]:
    """Of each image: whether the detector, search and all, finds the secret, and would name its account."""
    rows = []
    for image, secret in zip(images, secrets, strict=True):
        found = lab.detectors[id(codec)].detect(image, secret)
        assert found.soft_p_value is not None
        rows.append(
            {
                "found": found.marked,
                "named": named(found.margins, secret),
                "accuracy": float(np.mean(found.bits == secret)),
            }
        )
    return rows


def named(margins: NDArray[np.floating[Any]], secret: Bits) -> bool:
    """Whether a registry of ACCOUNTS keys would name this one."""
    return p_of(margins, secret[None], 1) <= per_try(RATE, ACCOUNTS)


def figures(rows: list[Row], images: list[Image.Image], before: list[Image.Image]) -> Row:
    """Shares with exact intervals, and the damage against what was there before."""
    row: Row = {"images": len(rows), "accuracy": round(float(np.mean([r["accuracy"] for r in rows])), 4)}
    for name in ("found", "named"):
        hits = sum(bool(r[name]) for r in rows)
        row[name] = {
            "rate": round(hits / len(rows), 4),
            "interval_95": [round(x, 4) for x in clopper_pearson(hits, len(rows))],
        }
    scores = [Visibility(a).ssimulacra2(b) for a, b in zip(before, images, strict=True) if a.size == b.size]
    if len(scores) == len(images):
        row["ssimulacra2"] = round(float(np.mean(scores)), 1)
    return row


Attack = Callable[[Victim, float], Image.Image]
Finish = Callable[[Image.Image], Image.Image]


def removal(
    lab: Experiment,
    attack: Attack,
    public: bool = False,
    strengths: tuple[float, ...] = (0.0,),
    finish: Finish | None = None,
) -> Row:
    """Strength chosen on tune victims: the least that removes; else that with the fewest found in good quality.

    `finish` is done last and is no damage: a rotation.
    """
    codec = lab.public if public else lab.private
    chosen = strengths[0]
    if len(strengths) > 1:
        best = 2.0
        for strength in strengths:
            victims = lab.victims("tune", public)
            images = [attack(victim, strength) for victim in victims]
            secrets = np.stack([victim.secret for victim in victims])
            row = figures(read(lab, codec, images, secrets), images, [v.marked for v in victims])
            if row["ssimulacra2"] < LEAST_QUALITY and best < 2.0:
                break
            if row["found"]["rate"] <= best:
                best, chosen = row["found"]["rate"], strength
            if best <= REMOVED:
                break
    victims = lab.victims("test", public)
    images = [attack(victim, chosen) for victim in victims]
    secrets = np.stack([victim.secret for victim in victims])
    arrived = [finish(image) for image in images] if finish else images
    row = figures(read(lab, codec, arrived, secrets), images, [victim.marked for victim in victims])
    return row | ({"strength": chosen} if len(strengths) > 1 else {})


def forgery(lab: Experiment, marks: Callable[[int], attacks.Vector], secret: Callable[[int], Bits]) -> Row:
    """A mark put on covers that never had it; the strength that is found most often on tune, in good quality."""

    def made(part: str, strength: float) -> tuple[Row, list[Image.Image]]:
        covers = lab.covers(part)
        images = [attacks.shifted(cover, marks(i), strength) for i, cover in enumerate(covers)]
        secrets = np.stack([secret(i) for i in range(len(covers))])
        return figures(read(lab, lab.private, images, secrets), images, covers), images

    best, chosen = -1.0, STRENGTHS[0]
    for strength in STRENGTHS:
        row, _ = made("tune", strength)
        if row["ssimulacra2"] >= LEAST_QUALITY and row["found"]["rate"] > best:
            best, chosen = row["found"]["rate"], strength
    return made("test", chosen)[0] | {"strength": chosen}


# --- the experiments ---------------------------------------------------------------------------------------


def tasks(lab: Experiment) -> dict[str, Callable[[], Row]]:
    """Every row by its name, what matters most first."""
    seen = [count for count in SEEN if count <= lab.pool_size]
    found: dict[str, Callable[[], Row]] = {}
    add = partial(_removal_task, found, lab, False)
    add("none, private", lambda victim, _: victim.marked)
    found["rotated, private"] = partial(removal, lab, lambda v, _: v.marked, finish=turned)
    for count in seen[:2]:
        found[f"tones of {count} notched, rotated, private"] = partial(notch, lab, count)
    found["forgery: copied from one picture, private"] = lambda: forged_copy(lab)
    found["privacy: another key"] = lambda: other_key(lab)
    add("overwritten under another key, private", lambda v, _: lab.other.embed(v.marked, 0x1234).image)
    add = partial(_removal_task, found, lab, True)
    add("none, public", lambda victim, _: victim.marked)
    add("complement written, public", lambda v, _: lab.public.embed(v.marked, 1 - v.secret).image)
    add("overwritten under the same key, public", lambda v, _: lab.public.embed(v.marked, 0x1234).image)
    add("erased along the gradient, public", lambda v, _: attacks.erased(v.marked, lab.public))
    found["forgery: read and written again, public"] = lambda: forged_with_codec(lab)
    for count in seen[:2]:
        found[f"mean of {count}, one secret, private"] = partial(averaged, lab, count)
        found[f"forgery: mean of {count}, one secret, private"] = partial(forged_mean, lab, count)
    found["privacy: linking pictures"] = lambda: linking(lab)
    for count in COLLUDERS:
        found[f"collusion of {count}, one secret an account"] = partial(collusion, lab, count, False)
        found[f"collusion of {count}, fresh secrets"] = partial(collusion, lab, count, True)
    for count in seen:
        found[f"principal directions of {count}, fresh secrets, private"] = partial(principal, lab, count)
        found[f"decoder fitted to {count} with known secrets, private"] = partial(fitted, lab, count)
        found[f"mean of {count}, fresh secrets, private"] = partial(averaged_fresh, lab, count)
        found[f"tones of {count} notched, rotated, private"] = partial(notch, lab, count)
        if count <= ONE_SECRET:
            found[f"mean of {count}, one secret, private"] = partial(averaged, lab, count)
            found[f"forgery: mean of {count}, one secret, private"] = partial(forged_mean, lab, count)
    found["oracle, private"] = lambda: oracle(lab)
    return found


def _removal_task(found: dict[str, Any], lab: Experiment, public: bool, name: str, attack: Attack) -> None:
    found[name] = partial(removal, lab, attack, public)


def turned(image: Image.Image) -> Image.Image:
    """Rotated about its centre, black outside: the plain read is lost and the tones are needed."""
    return image.rotate(ROTATION, Image.Resampling.BICUBIC)


def notch(lab: Experiment, count: int) -> Row:
    frequencies = lab.tones(count)
    true = lab.private.layout.tones.frequencies
    near = [min(np.hypot(*(f - t)) for f in frequencies for t in (one, -one)) <= 1 for one in true]
    row = removal(lab, lambda v, _: attacks.notched(v.marked, frequencies), finish=turned)
    return row | {"seen": count, "tones_found": int(np.sum(near)), "tones": len(true)}


def principal(lab: Experiment, count: int) -> Row:
    directions = lab.fresh.subspace(count)
    row = removal(lab, partial(_without, directions), strengths=STRENGTHS)
    return row | {"seen": count}


def fitted(lab: Experiment, count: int) -> Row:
    patterns = lab.fresh.patterns(count)
    truth = np.stack([victim.secret for victim in lab.victims("test")])
    margins = np.stack([patterns @ attacks.features(victim.marked) for victim in lab.victims("test")])
    row = removal(lab, partial(_without, patterns), strengths=STRENGTHS)
    return row | {"seen": count, "bits_read_without_key": round(float(np.mean((margins > 0) == truth)), 4)}


def _without(directions: NDArray[np.float32], victim: Victim, strength: float) -> Image.Image:
    return attacks.shifted(victim.marked, -attacks.within(directions, victim.marked), strength)


def averaged(lab: Experiment, count: int) -> Row:
    """Victims carry the very secret of the pool."""
    return _with_secret(lab, lab.one.secrets[0], lab.one.mean(count)) | {"seen": count}


def averaged_fresh(lab: Experiment, count: int) -> Row:
    mark = lab.fresh.mean(count)
    row = removal(lab, lambda v, s: attacks.shifted(v.marked, -mark, s), strengths=STRENGTHS)
    return row | {"seen": count}


def _with_secret(lab: Experiment, secret: Bits, mark: attacks.Vector) -> Row:
    own = Experiment(lab.folders, lab.folder, lab.counts["test"], lab.counts["tune"], lab.pool_size)
    own.secrets = lambda number, count: np.repeat(secret[None], count, axis=0)  # type: ignore[method-assign]
    return removal(own, lambda v, s: attacks.shifted(v.marked, -mark, s), strengths=STRENGTHS)


def forged_mean(lab: Experiment, count: int) -> Row:
    mark = lab.one.mean(count)
    return forgery(lab, lambda _: mark, lambda _: lab.one.secrets[0]) | {"seen": count}


def forged_copy(lab: Experiment) -> Row:
    count = max(lab.counts.values())
    secrets = lab.secrets(6, count)
    pairs = zip(lab.seen(count), secrets, range(count), strict=True)
    rows = [attacks.features(lab.kept(lab.private, c, s, f"fresh-{i:04d}")) for c, s, i in pairs]
    return forgery(lab, lambda i: rows[i], lambda i: secrets[i]) | {"seen": 1}


def forged_with_codec(lab: Experiment) -> Row:
    victims, covers = lab.victims("test", public=True), lab.covers("test")[::-1]
    bits = [lab.public.read(victim.marked).margins > 0 for victim in victims]
    images = [
        lab.public.embed(cover, b.astype(np.uint8)).image for cover, b in zip(covers, bits, strict=True)
    ]
    secrets = np.stack([victim.secret for victim in victims])
    return figures(read(lab, lab.public, images, secrets), images, covers)


def oracle(lab: Experiment, victims: int = 4) -> Row:
    """A detector of the private key that says "marked" or "not marked" a thousand times, without the search."""
    everybody = lab.victims("test")
    chosen, made = everybody[:: max(1, len(everybody) // victims)][:victims], []
    plain = PixelDetector(lab.private, fpr=FPR, search=False)
    for number, victim in enumerate(chosen):
        rng = np.random.default_rng([SEED, 7, number])

        def ask(image: Image.Image) -> bool:
            return plain.detect(image).marked

        made.append(attacks.through_oracle(victim.marked, destroyers(victim.marked), ask, QUESTIONS, rng))
    secrets = np.stack([victim.secret for victim in chosen])
    row = figures(read(lab, lab.private, made, secrets), made, [victim.marked for victim in chosen])
    return row | {"questions": QUESTIONS}


def destroyers(image: Image.Image) -> list[Image.Image]:
    """Copies that may have lost the mark, the least damaged first."""
    small = (
        image.resize((image.width // by, image.height // by)).resize(image.size, Image.Resampling.BICUBIC)
        for by in (3, 4, 6, 8)
    )
    blurred = (image.filter(ImageFilter.GaussianBlur(radius)) for radius in (2, 3, 4, 6, 8, 12))
    return sorted([*small, *blurred], key=lambda one: -Visibility(image).ssimulacra2(one))


@cache
def copies(lab: Experiment, account: int, fresh: bool) -> tuple[list[NDArray[np.float32]], Bits]:
    """Pictures as one account got them, and their secrets: always its own, or a fresh one a picture."""
    covers = lab.covers("test")[:COPIED]
    secrets = lab.secrets(100 + account, len(covers))
    if not fresh:
        secrets = np.repeat(secrets[:1], len(covers), axis=0)
    names = (f"account-{account}-{number}" for number in range(len(covers)))
    marked = [lab.kept(lab.private, *one) for one in zip(covers, secrets, names, strict=True)]
    return [np.asarray(image, np.float32) for image in marked], secrets


def collusion(lab: Experiment, count: int, fresh: bool) -> Row:
    """The mean of the copies of `count` accounts: is one of them named, by one picture or by all of them?

    All pictures together: margins are summed where an account has one secret; with fresh secrets the p-values of an
    account's own secrets, each counted as a try, are combined (Fisher).
    """
    held = [copies(lab, account, fresh) for account in range(count)]
    mixed = [np.mean(some, axis=0) for some in zip(*(images for images, _ in held), strict=True)]
    images = [Image.fromarray(np.rint(one).astype(np.uint8)) for one in mixed]
    margins = np.stack([lab.private.read(image).margins for image in images])
    someone = [any(named(m, own[i]) for _, own in held) for i, m in enumerate(margins)]
    innocent = np.random.default_rng([SEED, 9]).integers(2, size=(2000, 64), dtype=np.uint8)
    accused = [any(named(m, secret) for secret in innocent) for m in margins]
    if fresh:
        together = [fisher([p_of(m, own, len(own)) for m in margins]) for _, own in held]
    else:
        together = [p_of(margins.sum(axis=0), own[:1], 1) for _, own in held]
    return {
        "colluders": count,
        "secrets": "a fresh one a picture" if fresh else "one an account",
        "images": len(images),
        "someone_named": _share(someone),
        "named_by_all_pictures_together": sum(p <= per_try(RATE, ACCOUNTS) for p in together),
        "innocent_named": _share(accused),
    }


def p_of(margins: NDArray[np.floating[Any]], secrets: Bits, tries: int) -> float:
    """The soft p-value of the best of an account's secrets, counted as so many tries."""
    weights, bits = soft_weights(margins), (margins > 0).astype(np.uint8)
    return family_wise(min(soft_tail(soft_cost(bits, secret, weights), weights) for secret in secrets), tries)


def fisher(p_values: list[float]) -> float:
    """Chance that the product of independent p-values is so small."""
    return float(stats.chi2.sf(-2 * np.sum(np.log(p_values)), 2 * len(p_values)))


def other_key(lab: Experiment) -> Row:
    """Bits that somebody with another key reads, against the secrets."""
    victims = lab.victims("test")
    margins = [lab.other.read(victim.marked).margins for victim in victims]
    right = np.array([(m > 0) == victim.secret for m, victim in zip(margins, victims, strict=True)])
    return {"images": len(victims), "accuracy": round(float(right.mean()), 4)}


def linking(lab: Experiment) -> Row:
    """Without the key: does the correlation of features tell pairs of one secret from others (area under ROC)?"""
    from diffmark.statistics import auc

    count = min(len(lab.one.features), len(lab.fresh.features))
    same, fresh = (_pairs(pool.features[:count]) for pool in (lab.one, lab.fresh))
    plain = _pairs(np.stack([attacks.features(image) for image in lab.seen(count)]))
    return {
        "images": count,
        "auc_one_secret_against_fresh": round(auc(same, fresh), 4),
        "auc_fresh_under_one_key_against_unmarked": round(auc(fresh, plain), 4),
    }


def _pairs(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Correlations of disjoint neighbours, so that pairs are independent."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.sum(unit[0::2][: len(unit) // 2] * unit[1::2], axis=1).astype(np.float64)


def _share(values: list[bool]) -> Row:
    low, high = clopper_pearson(sum(values), len(values))
    return {"rate": round(sum(values) / len(values), 4), "interval_95": [round(low, 4), round(high, 4)]}


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
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    parser.add_argument("--out", type=Path, default=security_tables.RESULTS / "pixel.json")
    given = parser.parse_args()
    if given.report:
        head = json.loads((given.folder / "head.json").read_text())
        security_tables.write(given.out, {**head, "rows": _rows(given.folder)})
        security_tables.fill_page()
        return
    config = {"victims": given.victims, "tuning": given.tuning, "seed": SEED}
    run = Run(given.folder, config, MODULES)
    head = provenance(command_line(), config)
    (given.folder / "head.json").write_text(json.dumps(head))
    lab = Experiment(given.pictures, given.folder, given.victims, given.tuning, given.pool)
    made = tasks(lab)
    names = [name for name in made if name.startswith(given.only)]
    run.extend(lambda name: {"id": name, **made[name]()}, names, 1, str)


def _rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
