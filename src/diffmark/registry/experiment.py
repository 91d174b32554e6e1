"""The paper's identification experiment on any method's logits: closed and open set, hard and soft.

Tier 1 (N up to the number of images n): the database is N of the n real keys, and their images are asked for.
Tier 2 (N > n): all n real keys and N - n random ones. Each trial draws another database. Closed set: is the true
key ranked first (ties count their share)? Open set: is it ranked first and accepted at the family-wise rate, and
is somebody named although the image's own key is left out of the database?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diffmark import secret
from diffmark.registry import query as queries
from diffmark.registry.answers import RATE
from diffmark.registry.index import MultiIndex
from diffmark.registry.query import LENGTH, Hits, Keys, Query
from diffmark.registry.scan import scan
from diffmark.statistics import clopper_pearson, family_wise, to_logits, to_margins

RANKINGS = ("hard", "soft")
NEAREST_KEYS = 6  # nearest keys looked at: more than that never tie at the sizes of interest
BATCH = 250  # queries in one pass over the keys
INDEXED = 3 * 10**7  # keys from which a thousand queries are answered sooner by building the index first


@dataclass(frozen=True)
class Decoded:
    """What a method read from n images, and what was written into them."""

    name: str
    logits: NDArray[np.float32]  # (n, 64, 2)
    secrets: NDArray[np.uint8]  # (n, 64)

    def __post_init__(self) -> None:
        n = len(self.logits)
        if self.logits.shape != (n, LENGTH, 2) or self.secrets.shape != (n, LENGTH) or not n:
            raise ValueError(
                f"{self.name}: needs logits (n, 64, 2) and secrets (n, 64), "
                f"got {self.logits.shape} and {self.secrets.shape}"
            )

    @property
    def margins(self) -> NDArray[np.float64]:
        """Logit of 1 minus logit of 0, (n, 64)."""
        return to_margins(self.logits.astype(np.float64))

    @property
    def ber(self) -> float:
        """Share of wrong bits."""
        return float(np.mean((self.margins > 0) != (self.secrets > 0)))


def read(path: Path) -> Decoded:
    """A file with arrays `logits` and `secrets`; its name without the suffix names the curve."""
    with np.load(path, allow_pickle=False) as file:
        if not {"logits", "secrets"} <= set(file.files):
            raise ValueError(
                f"{path}: needs arrays logits and secrets, found {', '.join(file.files) or 'none'}"
            )
        return Decoded(path.stem, file["logits"].astype(np.float32), file["secrets"].astype(np.uint8))


def together(decoded: Decoded, count: int) -> Decoded:
    """Evidence of `count` images a secret, summed; secrets with fewer images are left out."""
    groups: dict[bytes, list[int]] = {}
    for place, bits in enumerate(decoded.secrets):
        groups.setdefault(bits.tobytes(), []).append(place)
    chosen = [places[:count] for places in groups.values() if len(places) >= count]
    if not chosen:
        raise ValueError(f"{decoded.name}: no secret has {count} images")
    sums = np.stack([decoded.logits[places].sum(axis=0) for places in chosen])
    return Decoded(
        f"{decoded.name}, {count} together", sums, decoded.secrets[[places[0] for places in chosen]]
    )


def simulate(ber: float, images: int, seed: int, each: int = 1) -> Decoded:
    """Independent errors: margins are the secret's signs plus Gaussian noise that flips a share `ber`.

    `each` images of every secret, `images` secrets.
    """
    from scipy.special import ndtri

    if not 0 < ber < 0.5:
        raise ValueError(f"ber must lie between 0 and 0.5, got {ber}")
    rng = np.random.default_rng(seed)
    secrets = np.repeat(rng.integers(0, 2, (images, LENGTH), dtype=np.uint8), each, axis=0)
    margins = (2.0 * secrets - 1) * -ndtri(ber) + rng.standard_normal(secrets.shape)
    return Decoded(f"iid {ber:g}", to_logits(margins), secrets)


def run(
    decoded: Decoded, sizes: Sequence[int], trials: int = 10, seed: int = 0, rate: float = RATE
) -> Iterator[dict[str, Any]]:
    """One row for each database size and ranking, each with the rate that theory expects of these images."""
    rng = np.random.default_rng(seed)
    own = np.array([secret.to_int(bits) for bits in decoded.secrets], dtype=np.uint64)
    asked = {
        "hard": [queries.from_bits(margins > 0) for margins in decoded.margins],
        "soft": [queries.from_margins(margins) for margins in decoded.margins],
    }
    for size in sizes:
        tallies = {ranking: Tally(rate, size) for ranking in RANKINGS}
        for _ in range(trials):
            members, database = draw_database(own, size, rng)
            index = MultiIndex(database) if size >= INDEXED else None
            for ranking in RANKINGS:
                chosen = [asked[ranking][i] for i in members]
                for query, key, hits in zip(
                    chosen, own[members], nearest(database, index, chosen), strict=True
                ):
                    tallies[ranking].count(query, key, *hits)
        for ranking in RANKINGS:
            yield {
                "source": decoded.name,
                "ber": decoded.ber,
                "keys": size,
                "tier": 1 if size <= len(own) else 2,
                "ranking": ranking,
                "trials": trials,
                "rate": rate,
                "expected_top1": float(
                    np.mean([expected_top1(q, k, size) for q, k in zip(asked[ranking], own, strict=True)])
                ),
                **tallies[ranking].rates(),
            }


def nearest(database: Keys, index: MultiIndex | None, asked: list[Query]) -> Iterator[Hits]:
    """The nearest keys of each query, its own among them."""
    for start in range(0, len(asked), BATCH):
        part = asked[start : start + BATCH]
        found = [index.search(query, NEAREST_KEYS, budget=len(database)) if index else None for query in part]
        missed = [query for query, hits in zip(part, found, strict=True) if hits is None]
        scanned = iter(scan(database, missed, NEAREST_KEYS) if missed else [])
        yield from (next(scanned) if hits is None else hits for hits in found)


def draw_database(own: Keys, size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Keys]:
    """(images that are asked for, keys of the database) of one trial."""
    if size <= len(own):
        members = rng.choice(len(own), size, replace=False)
        return members, own[members]
    others = rng.integers(0, 2**64, size - len(own), dtype=np.uint64)
    return np.arange(len(own)), np.concatenate([own, others])


class Tally:
    """Counts of one ranking at one database size."""

    def __init__(self, rate: float, size: int) -> None:
        self.rate, self.size = rate, size
        self.asked = 0
        self.first = self.named = self.wrong = self.absent = 0.0

    def count(self, query: Query, key: np.uint64, costs: NDArray[np.int64], found: Keys) -> None:
        """Add one image: `costs` and `found` are the nearest keys of the database, its own included."""
        mine = int(query.costs(np.array([key], dtype=np.uint64))[0])
        others = costs[found != key]
        best = int(others[0]) if len(others) else len(query.distribution)
        ties = int((others == mine).sum())
        share = 0.0 if best < mine else 1 / (1 + ties)
        self.asked += 1
        self.first += share
        accepted = self._accepted(query, min(mine, best))
        self.named += share * accepted
        self.wrong += (1 - share) * accepted
        self.absent += bool(len(others)) and self._accepted(query, best)

    def _accepted(self, query: Query, cost: int) -> bool:
        return family_wise(float(query.distribution[cost]), self.size) <= self.rate

    def rates(self) -> dict[str, Any]:
        """Shares of the images asked for, with exact 95% intervals."""
        return {
            "images": self.asked,
            "top1": self.first / self.asked,  # closed set
            "top1_interval": clopper_pearson(round(self.first), self.asked),
            "named": self.named / self.asked,  # open set: the right account, accepted
            "named_interval": clopper_pearson(round(self.named), self.asked),
            "wrongly_named": self.wrong / self.asked,
            "named_though_absent": self.absent / self.asked,
            "named_though_absent_interval": clopper_pearson(round(self.absent), self.asked),
        }


def expected_top1(query: Query, key: np.uint64, size: int) -> float:
    """Probability that a key ranks first among `size` of which the others are random; ties count their share."""
    return win_probability(query.distribution, int(query.costs(np.array([key], dtype=np.uint64))[0]), size)


def win_probability(distribution: NDArray[np.float64], cost: int, size: int) -> float:
    """E[1 / (1 + ties); nobody nearer] = ((1 - F(c-1))^N - (1 - F(c))^N) / (N f(c)) for N = size."""
    before = float(distribution[cost - 1]) if cost else 0.0
    mass = float(distribution[cost]) - before
    if mass <= 0:  # less than can be told from zero: ties do not happen
        return float((1 - before) ** (size - 1))
    if mass >= 1 - before:  # nothing can be further away
        return (1 - before) ** size / (size * mass)
    return float(
        -np.exp(size * np.log1p(-before)) * np.expm1(size * np.log1p(-mass / (1 - before))) / (size * mass)
    )


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Closed-set top-1 and open-set naming against the number of keys; a colour a source, dashed for hard."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    closed, opened = figure.subplots(1, 2)
    sources = list(dict.fromkeys(row["source"] for row in rows))
    for number, source in enumerate(sources):
        for ranking, line in (("hard", "--"), ("soft", "-")):
            chosen = [row for row in rows if row["source"] == source and row["ranking"] == ranking]
            sizes = [row["keys"] for row in chosen]
            style: dict[str, Any] = {
                "color": f"C{number % 10}",
                "linestyle": line,
                "marker": "o",
                "markersize": 3,
            }
            closed.plot(sizes, [row["top1"] for row in chosen], label=f"{source}, {ranking}", **style)
            closed.plot(sizes, [row["expected_top1"] for row in chosen], "k:", linewidth=0.8)
            opened.plot(sizes, [row["named"] for row in chosen], **style)
    closed.set(title="closed set: true key ranked first", xscale="log", xlabel="keys", ylim=(-0.02, 1.02))
    title = f"open set: named at family-wise error {rows[0]['rate']:g}"
    opened.set(title=title, xscale="log", xlabel="keys", ylim=(-0.02, 1.02))
    closed.plot([], [], "k:", label="expected")
    closed.legend(fontsize=7)
    figure.savefig(path, dpi=130)
