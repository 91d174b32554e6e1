"""Security: putting somebody's secret on an image that they did not make, from a single marked one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageFilter

from diffmark.baselines.diffmark import DiffMark
from diffmark.evaluation.experiments.averaging import add
from diffmark.evaluation.lab import Lab, Row
from diffmark.evaluation.metrics import bit_figures, psnr, share
from diffmark.mark.image import embed
from diffmark.statistics import match_threshold

RATE = 1e-3


def forgery(lab: Lab) -> Iterator[Row]:
    """Who holds the codec reads a secret and writes it elsewhere; who holds one image copies its fine detail.

    Targets are unmarked pictures of the model. The copy is the classic one: the image less a smoothed version of
    itself, added to the target.
    """
    orders, count = lab.orders(lab.extent.victims), lab.extent.victims
    targets = lab.plain(lab.orders(count, first=lab.extent.pool))
    for method in (method for method in lab.methods if method.counts and not method.costly):
        marked, secrets = lab.marked(method, orders), lab.secrets(method, orders)
        ways = {"copy of fine detail": [_copied(a, b) for a, b in zip(marked, targets, strict=True)]}
        if isinstance(method, DiffMark):
            ways["read and written with the codec"] = _rewritten(lab, method, marked, targets)
        for way, forged in ways.items():
            found = lab.read(method, forged, secrets)
            row: Row = {"method": method.name, "way": way} | bit_figures(found.margins, secrets)
            row["taken_for_marked"] = share(found.scores >= match_threshold(method.bits, RATE))
            row["psnr_of_attack"] = float(np.mean([psnr(a, b) for a, b in zip(targets, forged, strict=True)]))
            yield row


def _copied(marked: Image.Image, target: Image.Image) -> Image.Image:
    smooth = marked.filter(ImageFilter.MedianFilter(5))
    return add(target, np.asarray(marked, np.float64) - np.asarray(smooth, np.float64))


def _rewritten(
    lab: Lab, method: DiffMark, marked: list[Image.Image], targets: list[Image.Image]
) -> list[Image.Image]:
    blank = np.zeros((len(marked), method.bits), np.uint8)
    bits = (lab.read(method, marked, blank).margins > 0).astype(np.uint8)

    def work() -> list[Image.Image]:
        vae = method.detector.vae
        return [embed(image, method.codec, vae, secret) for image, secret in zip(targets, bits, strict=True)]

    return lab.meter.do(f"embed by {method.name}", len(targets), work, lambda: list(targets))
