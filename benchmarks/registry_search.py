"""Search time against the number of keys, 1e4 to 1e8, with the read-bandwidth limit and faiss of the same run.

    python benchmarks/registry_search.py            # about five minutes, 4.5 GB

Writes results/registry_search.json and .png. One thread; CPU milliseconds; needs faiss-cpu for its row.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diffmark.provenance import provenance
from diffmark.registry.bench import bench

RESULTS = Path(__file__).parents[1] / "results"
SIZES = (10**4, 10**5, 10**6, 10**7, 10**8)
SEED = 5
CURVES = {
    "read all keys (the limit)": "k:",
    "numpy blocks, hard": "C7-o",
    "faiss IndexBinaryFlat": "C3-o",
    "scan, hard": "C0-o",
    "scan, soft": "C0--s",
    "scan, batch of 256, a query": "C1-o",
    "index, best ten, soft": "C2--s",
    "index, every key within 16 errors": "C4-o",
    "index, every key within 11 errors": "C2-o",
}


def main() -> None:
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        keys = np.random.default_rng(SEED).integers(0, 2**64, size, dtype=np.uint64)
        for row in bench(keys, SEED):
            print(
                f"{row['keys']:>11} {row['what']:<36} {row['ms']:>12.4f} ms {row['times_limit']:>9.3f} x",
                flush=True,
            )
            rows.append(row)
    document = {
        **provenance("python benchmarks/registry_search.py", {"sizes": SIZES, "seed": SEED, "threads": 1}),
        "checks": checks([row for row in rows if row["keys"] == SIZES[-1]]),
        "rows": rows,
    }
    (RESULTS / "registry_search.json").write_text(json.dumps(document, indent=1) + "\n")
    plot(rows)


def checks(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures to reach, at the largest size."""
    ms = {row["what"]: row["ms"] for row in rows}
    limit, scan = ms["read all keys (the limit)"], ms["scan, hard"]
    build = next(row for row in rows if row["what"] == "build index")
    figures = {
        "scan / limit": (scan / limit, 1.3),
        "index, 11 errors, ms": (ms["index, every key within 11 errors"], 5),
        "index, 16 errors, ms": (ms["index, every key within 16 errors"], 30),
        "batch of 256 a query / scan": (ms["scan, batch of 256, a query"] / scan, 0.3),
        "bytes a key, index with the keys": (build["bytes_a_key"] + 8, 40),
    }
    if "faiss IndexBinaryFlat" in ms:
        figures["scan / faiss"] = (scan / ms["faiss IndexBinaryFlat"], 1)
    return {
        name: {"measured": value, "at_most": most, "reached": value <= most}
        for name, (value, most) in figures.items()
    }


def plot(rows: list[dict[str, Any]]) -> None:
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    for what, style in CURVES.items():
        chosen = [row for row in rows if row["what"] == what]
        axes.loglog(
            [row["keys"] for row in chosen], [row["ms"] for row in chosen], style, label=what, markersize=4
        )
    axes.set(
        xlabel="keys", ylabel="CPU ms a query, one thread", title="Exact search among N random 64-bit keys"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(RESULTS / "registry_search.png", dpi=130)


if __name__ == "__main__":
    main()
