"""How many payload bits survive which bit error rate: the table in docs/payloads.md.

    python benchmarks/payload_table.py            # writes results/payload_table.json and the table in the docs

Hard decoding is computed: a payload is read if at most t of the first 63 bits are wrong. Soft decoding is
simulated: margins +-1 plus Gaussian noise of the size that gives the bit error rate.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import typer
from markdown_tables import between, table
from scipy import stats

from diffmark.payload.scheme import PayloadScheme, rates
from diffmark.provenance import provenance

ROOT = Path(__file__).parents[1]
ERROR_RATES = (0.01, 0.02, 0.05, 0.08, 0.12)


def soft_rate(scheme: PayloadScheme, error_rate: float, trials: int, rng: np.random.Generator) -> float:
    """Share of noisy secrets whose payload comes out right."""
    sigma = 1 / stats.norm.isf(error_rate)
    right = 0
    for _ in range(trials):
        account = int(rng.integers(2**scheme.account_bits))
        margins = 2.0 * scheme.encode(account, 0) - 1 + rng.normal(0, sigma, scheme.code.length)
        right += scheme.decode(margins).account == account
    return right / trials


def main(trials: int = 1000, seed: int = 0) -> None:
    """Compute the table, write its JSON and put it into the docs."""
    rng, rows = np.random.default_rng(seed), []
    for dimension, t in rates(64):
        scheme = PayloadScheme(bytes(32), 64, dimension - 12, 0, 12)
        for error_rate in ERROR_RATES:
            hard = float(stats.binom.cdf(t, 63, error_rate))
            soft = soft_rate(scheme, error_rate, trials, rng)
            rows.append({"payload_bits": dimension - 12, "check_bits": 12, "t": t, "bit_error_rate": error_rate,
                         "read_hard": hard, "read_soft": soft})  # fmt: skip
    config = {"length": 64, "trials": trials, "seed": seed, "key": "zeros"}
    (ROOT / "results").mkdir(exist_ok=True)
    document = {**provenance("python benchmarks/payload_table.py", config), "rows": rows}
    (ROOT / "results" / "payload_table.json").write_text(json.dumps(document, indent=1) + "\n")
    page = ROOT / "docs" / "payloads.md"
    page.write_text(fill(page.read_text(), rows))


def fill(text: str, rows: list[dict]) -> str:
    """The page with the table between its two marks."""
    return between("table", reading_table(rows), text)


def reading_table(rows: list[dict]) -> str:
    """Markdown: a row a rate, a column a bit error rate, hard / soft."""
    heads = ["payload + check bits", "corrects t", *(f"BER {100 * rate:g}%" for rate in ERROR_RATES)]
    lines = []
    for payload in dict.fromkeys(row["payload_bits"] for row in rows):
        chosen = [row for row in rows if row["payload_bits"] == payload]
        cells = [f"{row['read_hard']:.3f} / {row['read_soft']:.3f}" for row in chosen]
        lines.append([f"{payload} + 12", chosen[0]["t"], *cells])
    return table(heads, lines)


if __name__ == "__main__":
    typer.run(main)
