"""How often unmarked pictures have so much evidence: the blind test of the pixel layer.

The tail was measured with the whole search on unmarked pictures of many kinds by `benchmarks/pixel_negatives.py`,
which writes `calibration.json` into the package `pixel`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files

from diffmark.detection.decision import BlindTest


@lru_cache(maxsize=1)
def tail() -> tuple[tuple[float, float], ...]:
    """(p, nats): a share p of unmarked pictures has at least this evidence."""
    file = files("diffmark.pixel") / "calibration.json"
    return tuple((float(p), float(nats)) for p, nats in json.loads(file.read_text())["tail"])


def blind_test(evidence: float) -> BlindTest:
    """The p-value of this evidence, rounded up to the next measured tail."""
    p_value = min((p for p, nats in tail() if evidence > nats), default=1.0)
    return BlindTest(p_value, min(p for p, _ in tail()), evidence)
