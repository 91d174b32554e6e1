"""How fast scenes are painted, on one core, beside loading the same picture from a PNG file.

python benchmarks/painter.py
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

from PIL import Image

from diffmark.provenance import provenance
from diffmark.vista.paint import paint
from diffmark.vista.scenes import HELD_OUT, random_scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/vista/painter.json"))
    arguments = parser.parse_args()
    paint(random_scene(HELD_OUT))  # what is drawn once a size is drawn now
    painting = loading = 0.0
    for seed in range(HELD_OUT, HELD_OUT + arguments.count):
        start = time.process_time()
        picture = paint(random_scene(seed))
        painting += time.process_time() - start
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        start = time.process_time()
        Image.open(file).load()
        loading += time.process_time() - start
    rows = {
        "pictures_a_second": round(arguments.count / painting, 1),
        "times_loading_a_png": round(painting / loading, 1),
    }
    document = provenance(
        f"python benchmarks/painter.py --count {arguments.count}", {"count": arguments.count}
    )
    arguments.out.write_text(json.dumps({**document, "seed": HELD_OUT, "results": rows}, indent=1) + "\n")
    print(rows)


if __name__ == "__main__":
    main()
