"""What the core alone has to do, in a folder: `core_only.py FOLDER [BLOCKED,NAMES]`; prints a JSON line at the end.

Names of packages that are given cannot be imported. Keys are issued, a picture is marked for an account, attacked,
detected and identified, by the command line and by the library.
"""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

folder, blocked = Path(sys.argv[1]), set(sys.argv[2].split(",")) if len(sys.argv) > 2 else set()


sys.modules.update(dict.fromkeys(blocked))  # None: an import fails, and no spec is found
os.environ["DIFFMARK_REGISTRY"] = f"sqlite:///{folder / 'registry.db'}"
os.environ["XDG_DATA_HOME"] = os.environ["XDG_CONFIG_HOME"] = str(folder / "data")

import numpy as np  # noqa: E402
from PIL import Image, ImageFilter  # noqa: E402

import diffmark  # noqa: E402
from diffmark.cli import main  # noqa: E402


def run(*arguments: Any) -> tuple[int, str]:
    """Exit code and output of a command."""
    sys.argv = ["diffmark", *map(str, arguments)]
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


noise = np.random.default_rng(0).integers(0, 256, (512, 512, 3)).astype(np.uint8)
photo = folder / "photo.png"
Image.fromarray(noise).filter(ImageFilter.GaussianBlur(4)).point(
    lambda v: min(255, max(0, 4 * v - 384))
).save(photo)

issued = [run("keys", "issue", f"other-{i}")[0] for i in range(3)]
embedded, _ = run("embed", photo, "--out", folder / "marked.png", "--principal", "user-42")
attacked, _ = run("attack", "jpeg", folder / "marked.png", folder / "shared.png", "--strength", "0.5")
plain, _ = run("detect", photo, "--json")
detected, line = run("detect", folder / "shared.png", "--json")
found = json.loads(line)
identified, line = run("identify", folder / "shared.png", "--json")
named = json.loads(line)

secret = diffmark.random_secrets(1)[0]
marked = diffmark.embed(photo, secret)
payload = diffmark.PayloadScheme(bytes(32))
again = diffmark.detect(diffmark.embed(photo, payload.encode(7, 8)).image)
loaded = [n for n in ("torch", "diffusers", "transformers", "galois") if sys.modules.get(n) is not None]
print(json.dumps({
    "codes": [*issued, embedded, attacked, plain, detected, identified],
    "verdict": found["verdict"],
    "principal": named["verdict"]["principal"],
    "library": diffmark.detect(marked.image, secret).verdict,
    "account": payload.decode(again.margins).account,
    "generate": run("generate", "a hill", "--out", folder / "generated")[0],
    "loaded": loaded,
}))  # fmt: skip
