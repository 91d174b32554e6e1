"""The reader in a browser: its constants, and the page `docs/verify.html`, one file with everything in it.

    python -m diffmark.server.verify_page   # writes server/static/pixel-constants.js and docs/verify.html

Run it after a change of this package's constants, of `calibration.json`, or of the page's scripts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from diffmark.detection.decision import Question
from diffmark.pixel import codec, keys, layout, reader, search, spectrum, tones

Table = dict[
    str, Any
]  # {"negatives": n, "tail": [[share of unmarked pictures, nats that it has more than], ...]}

STATIC = Path(__file__).parent / "static"
VERIFY = Path(__file__).parent / "verify"
CALIBRATION = Path(__file__).parents[1] / "pixel" / "calibration.json"
CONSTANTS = STATIC / "pixel-constants.js"
PAGE = Path(__file__).parents[3] / "docs" / "verify.html"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const) (\w+)", re.MULTILINE)
PUBLIC_PHRASE = "diffmark public key for trying out"  # its SHA-256 is the public key
NAMES: dict[ModuleType, str] = {
    keys: "KEY_BYTES SALT",
    spectrum: "FRAME WINDOW NOISE_FLOOR CLIP OUTLIER AXIS_GUARD GRID GRID_GUARD MAX_AREA TO_PLANES",
    layout: "MIN_GAIN BANDS",
    tones: "COUNT LOW HIGH APART STEPS",
    search: (
        "SIZE ANGLES STEP MIN_SCALE MAX_SCALE LOCAL PEAK ASPECTS CANDIDATES MIN_PEAK POSITIONS TURN_STEP "
        "SCALE_STEP SHIFT_STEP BLOCK SHRINK"
    ),
    reader: "CHROMA_SIDE CLEAR_NATS FOUND_NATS PROMISING_NATS REFINE_ROUNDS",
    codec: "MIN_SIDE MAX_PIXELS",
}  # what the reader in JavaScript needs of each module
MORE: dict[ModuleType, dict[str, Any]] = {
    keys: {"PUBLIC_PHRASE": PUBLIC_PHRASE},
    layout: {"LENGTH": layout.PixelConfig().length},
}


def constants(table: Table) -> str:
    """The module `pixel-constants.js`: one object for each Python module, and what blind verdicts rest on."""
    lines = ["// Made by `python -m diffmark.server.verify_page` from the Python modules of the same names."]
    for module, names in NAMES.items():
        name = module.__name__.rpartition(".")[2].upper()
        values = {one: _plain(getattr(module, one)) for one in names.split()}
        values |= MORE.get(module, {})
        lines += ["", f"export const {name} = {{"]
        lines += [f"  {one}: {json.dumps(value)}," for one, value in values.items()]
        lines += ["};"]
    lines += ["", f"export const MARKED_RATE = {Question().fpr}; // share of unmarked pictures called marked"]
    lines += ["", f"export const CALIBRATION = {json.dumps(table)};"]
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


def page(table: Table) -> str:
    """`docs/verify.html`: markup, style, scripts and calibration in one file that can connect to nothing."""
    style = _read("style.css") + _read("page.css")
    script = bundle("page.js", table)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src blob: data:; "
        "worker-src blob:; connect-src 'none'; form-action 'none'; base-uri 'none'"
    )
    parts = {
        "policy": policy,
        "icon": base64.b64encode(_read("mark.svg").encode()).decode(),
        "style": style,
        "keys": _key_form(),
        "worker": bundle("pixel-worker.js", table),
        "script": script,
    }
    return re.sub(r"\{(\w+)\}", lambda place: parts[place[1]], _read("page.html"))


def _key_form() -> str:
    """The choice of a key, which is that of the auditor's page."""
    found = re.search(r"<fieldset.*?</fieldset>", _read("index.html"), re.DOTALL)
    assert found is not None
    return found[0]


def bundle(entry: str, table: Table) -> str:
    """A script that needs no imports: `entry` and the modules that it imports, each in a function of its own."""
    scripts = [
        _scoped(name, constants(table) if name == CONSTANTS.name else _read(name)) for name in _modules(entry)
    ]
    return "\n".join(['"use strict";', "const modules = {};", *scripts])


def _modules(entry: str) -> list[str]:
    """Names of the modules that one needs, in an order in which they can run, itself last."""
    found: list[str] = []
    for _, name in IMPORT.findall(_read(entry)):
        found += [module for module in _modules(name) if module not in found]
    return [*found, entry]


def _scoped(name: str, text: str) -> str:
    """A module as a call of a function that returns its exports."""
    text = IMPORT.sub(r'const {\1} = modules["\2"];', text)
    exports = ", ".join(EXPORT.findall(text))
    text = EXPORT.sub(lambda found: found[0].removeprefix("export "), text)
    if re.search(r"^(import|export)\b|</script|<!--", text, re.MULTILINE):
        raise ValueError(f"{name}: an import, export or tag that this bundler does not know")
    return f'modules["{name}"] = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();'


def _read(name: str) -> str:
    """A file of the page or of the reader."""
    path = VERIFY / name
    return (path if path.exists() else STATIC / name).read_text()


def calibration() -> Table:
    """The table of evidence of unmarked pictures, without how it was made."""
    whole = json.loads(CALIBRATION.read_text())
    return {name: whole[name] for name in ("negatives", "tail")}


def _digest(text: str) -> str:
    """A source of a content security policy: this text and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def main() -> None:
    table = calibration()
    CONSTANTS.write_text(constants(table))
    PAGE.write_text(page(table))


if __name__ == "__main__":
    main()
