"""Where in a picture the pixel layer's mark is.

The whitened luma w is correlated with the pattern P of one secret in a window around every place,

    z(x) = sum w P / sqrt(sum w^2 P^2),

a standard normal variable where the secret was not written. What an untouched picture would show follows from the
picture itself: the writer's mask over the local deviation says how the mark is spread, and one gain for the whole
picture, how strong it is.
"""

from __future__ import annotations

import numpy as np

from diffmark.detection.evidence_map import EvidenceMap
from diffmark.pixel.layout import Layout, to_frame
from diffmark.pixel.reader import Reading
from diffmark.pixel.search import undo
from diffmark.pixel.spectrum import FRAME, Plane, box, inverse, whiten
from diffmark.pixel.writer import masking
from diffmark.secret import Bits, to_hex

WINDOW = 73  # pixels a side of the frame
MIN_COVERAGE = 0.9  # share of a window that has to be there to tell anything
CELLS = 32  # of the map, a side
CORRELATED = 2.05  # deviation of the sum on unmarked pictures: neighbours in a band-limited product are alike


def evidence_map(
    planes: np.ndarray, layout: Layout, reading: Reading, secret: Bits | None = None
) -> EvidenceMap:
    """The map of a picture (3, H, W) for a secret, or for the bits that were read, in the marked frame."""
    frame, present = (to_frame(planes), None) if reading.view is None else undo(planes, reading.view)
    bits = (reading.margins > 0).astype(np.uint8) if secret is None else secret
    white = whiten(frame[0], present)
    pattern = _pattern(layout, 2.0 * bits - 1)
    product = white * pattern
    deviation = np.sqrt(np.maximum(box(product * product, WINDOW), 1e-12))
    slope = _slope(frame[0]) if present is None else _slope(frame[0]) * present
    spread = box(pattern * pattern * slope, WINDOW)
    found = box(product, WINDOW)
    gain = float((found * spread).sum() / max(float((spread * spread).sum()), 1e-12))
    scores, expected = (
        _cells(values / deviation * (WINDOW / CORRELATED)) for values in (found, max(gain, 0.0) * spread)
    )
    if present is not None:
        expected = np.where(_cells(box(present, WINDOW)) > MIN_COVERAGE, expected, 0)
    return EvidenceMap(scores, to_hex(bits), "pixel", expected)


def _pattern(layout: Layout, signs: np.ndarray) -> Plane:
    reach = layout.reach(luma=True)
    return inverse(np.sum([band.pattern(signs, reach) for band in layout.bands if not band.plane], axis=0))


def _slope(luma: Plane) -> Plane:
    """How much of a mark of gain 1 is left in the whitened picture."""
    detail = luma - box(luma)
    return masking(luma) / np.sqrt(np.maximum(box(detail * detail), 0) + 1)


def _cells(values: Plane) -> np.ndarray:
    step = FRAME // CELLS
    return values[step // 2 :: step, step // 2 :: step]
