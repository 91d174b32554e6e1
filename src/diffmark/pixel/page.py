"""The reader in a browser: its constants, and the page `docs/verify.html`, one file with everything in it.

    python -m diffmark.pixel.page constants > src/diffmark/server/static/pixel-constants.js
    python -m diffmark.pixel.page > docs/verify.html

Run both after a change of this package's constants, of `calibration.json`, or of the page's scripts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from diffmark.pixel import keys, layout, reader, search, spectrum, tones

STATIC = Path(__file__).parents[1] / "server" / "static"
PUBLIC_PHRASE = "diffmark public key for trying out"  # its SHA-256 is the public key
NAMES: dict[ModuleType, str] = {
    keys: "KEY_BYTES SALT",
    spectrum: "FRAME WINDOW NOISE_FLOOR CLIP OUTLIER AXIS_GUARD GRID GRID_GUARD LUMA BLUE RED",
    layout: "LEAST_GAIN BANDS",
    tones: "COUNT LOW HIGH APART STEPS",
    search: (
        "SIZE ANGLES STEP MIN_SCALE MAX_SCALE LOCAL PEAK ASPECTS CANDIDATES MIN_PEAK POSITIONS TURN_STEP "
        "SCALE_STEP SHIFT_STEP BLOCK SHRINK"
    ),
    reader: "CLEAR_NATS FOUND_NATS PROMISING_NATS REFINE_ROUNDS",
}  # what the reader in JavaScript needs of each module


def constants() -> str:
    """The module `pixel-constants.js`: one object for each Python module."""
    lines = [
        "// Made by `python -m diffmark.pixel.page constants` from the Python modules of the same names."
    ]
    for module, names in NAMES.items():
        name = module.__name__.rpartition(".")[2].upper()
        values = {one: _plain(getattr(module, one)) for one in names.split()}
        values |= {
            "KEYS": {"PUBLIC_PHRASE": PUBLIC_PHRASE},
            "LAYOUT": {"LENGTH": layout.PixelConfig().length},
        }.get(name, {})
        lines += ["", f"export const {name} = {{"]
        lines += [f"  {one}: {json.dumps(value)}," for one, value in values.items()]
        lines += ["};"]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """A constant as JSON takes it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [asdict(item) if isinstance(item, layout.BandConfig) else item for item in value]
    return value


if __name__ == "__main__":
    sys.stdout.write(constants())
