"""Security: putting somebody's secret on an image that they did not make, from a single marked one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFilter

from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.experiments.averaging import add
from diffmark.evaluation.harness import Harness, Row
from diffmark.mark.image import embed
from diffmark.metrics import bit_figures, psnr, share
from diffmark.statistics import match_threshold

RATE = 1e-3


def forgery(harness: Harness) -> Iterator[Row]:
    """Who holds the codec reads a secret and writes it elsewhere; who holds one image copies its fine detail.

    Targets are unmarked pictures of the model. The copy is the classic one: the image less a smoothed version of
    itself, added to the target.
    """
    specs, count = harness.specs(harness.extent.victims), harness.extent.victims
    targets = harness.plain(harness.specs(count, first=harness.extent.pool))
    for method in (method for method in harness.methods if method.counts and not method.costly):
        marked, secrets = harness.marked(method, specs), harness.secrets(method, specs)
        ways = {"copy of fine detail": [_copied(a, b) for a, b in zip(marked, targets, strict=True)]}
        if isinstance(method, DiffMark):
            ways["read and written with the codec"] = _rewritten(harness, method, marked, targets)
        for way, forged in ways.items():
            found = harness.read(method, forged, secrets)
            row: Row = {"method": method.name, "way": way} | bit_figures(found.margins, secrets)
            row["taken_for_marked"] = share(found.scores >= match_threshold(method.bits, RATE))
            row["psnr_of_attack"] = float(np.mean([psnr(a, b) for a, b in zip(targets, forged, strict=True)]))
            yield row


def _copied(marked: Image.Image, target: Image.Image) -> Image.Image:
    smooth = marked.filter(ImageFilter.MedianFilter(5))
    return add(target, np.asarray(marked, np.float64) - np.asarray(smooth, np.float64))


def _rewritten(
    harness: Harness, method: DiffMark, marked: list[Image.Image], targets: list[Image.Image]
) -> list[Image.Image]:
    blank = np.zeros((len(marked), method.bits), np.uint8)
    bits = (harness.read(method, marked, blank).margins > 0).astype(np.uint8)

    def work() -> list[Image.Image]:
        vae = method.detector.vae
        return [embed(image, method.codec, vae, secret) for image, secret in zip(targets, bits, strict=True)]

    return harness.timer.do(f"embed by {method.name}", len(targets), work, lambda: list(targets))
