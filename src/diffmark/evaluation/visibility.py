"""How much of a mark people see: SSIMULACRA2, Butteraugli, FLIP."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

BUTTERAUGLI = "butteraugli_main"  # of libjxl, Debian's package libjxl-devtools


def visibility_figures(plain: Sequence[Image.Image], marked: Sequence[Image.Image]) -> dict[str, float]:
    """Means over pairs of one prompt and seed; a measure whose program is not installed is left out.

    SSIMULACRA2: 100 is no difference, 90 is not seen, 70 high quality. Butteraugli's 3-norm: below 1 hardly seen.
    FLIP: mean difference when pictures are flipped between, 0 to 1, at 67 pixels a degree.
    """
    measures = {"ssimulacra2": ssimulacra2, "butteraugli": butteraugli, "flip": flip}
    figures: dict[str, float] = {}
    for name, measure in measures.items():
        try:
            figures[name] = float(np.mean([measure(a, b) for a, b in zip(plain, marked, strict=True)]))
        except (ImportError, FileNotFoundError):
            continue
    return figures


def ssimulacra2(plain: Image.Image, marked: Image.Image) -> float:
    """By the package of that name, which reads files."""
    from ssimulacra2 import compute_ssimulacra2

    with tempfile.TemporaryDirectory() as folder:
        return float(compute_ssimulacra2(*_written(Path(folder), plain, marked)))


def butteraugli(plain: Image.Image, marked: Image.Image) -> float:
    """The 3-norm, by libjxl's own program."""
    program = shutil.which(BUTTERAUGLI)
    if program is None:
        raise FileNotFoundError(f"{BUTTERAUGLI} is not installed: it is in Debian's libjxl-devtools")
    with tempfile.TemporaryDirectory() as folder:
        files = _written(Path(folder), plain, marked)
        said = subprocess.run([program, *files, "--pnorm", "3"], capture_output=True, text=True, check=True)
    return float(said.stdout.split("3-norm:")[1].split()[0])


def flip(plain: Image.Image, marked: Image.Image) -> float:
    """The mean error, by its authors' package flip-evaluator."""
    import flip_evaluator

    a, b = (np.asarray(image.convert("RGB"), np.float32) / 255 for image in (plain, marked))
    return float(flip_evaluator.evaluate(a, b, "LDR", applyMagma=False)[1])


def _written(folder: Path, *images: Image.Image) -> list[str]:
    paths = [folder / f"{index}.png" for index in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.convert("RGB").save(path)
    return [str(path) for path in paths]
