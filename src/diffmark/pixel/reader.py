"""The reader of the pixel layer: a plain read first, and where it is not clear, the search for a view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.layout import Layout, centred, evidence, margins, to_frame
from diffmark.pixel.search import Matrix, Vector, View, hill_climb, undo, views
from diffmark.pixel.spectrum import FRAME, WINDOW, Plane, resample, scaled, whiten

CLEAR_NATS = 60.0  # evidence at which a plain read is taken as it is
FOUND_NATS = 20.0  # evidence at which a view is taken for found
PROMISING_NATS = 6.0  # evidence of the luma bands, or of the others, at which a view is worth reading
CHROMA_SIDE = 128  # pixels a side that show all of the chroma bands
REFINE_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Reading:
    """Scores of every band and bit, and the view that they were read in (None: the picture as it came)."""

    scores: NDArray[np.float64]  # (K, L)
    view: View | None = None

    @property
    def margins(self) -> NDArray[np.float64]:
        """Log-likelihood ratio of 1 against 0 for every bit, (L,)."""
        return margins(self.scores)

    @property
    def evidence(self) -> float:
        """Log-likelihood ratio of some mark against none, in nats."""
        return evidence(self.scores)


def read(planes: NDArray[np.float32], layout: Layout, search: bool = True) -> Reading:
    """Read planes (3, H, W). A view is chosen by its evidence alone; no secret is known here."""
    frame = to_frame(planes)
    white = whiten(frame[0])
    plain = Reading(layout.scores(frame, white=white))
    if not search or plain.evidence >= CLEAR_NATS:
        return plain
    best = plain
    for view in views(planes[0], layout.tones, white):
        found = _refined(planes, layout, view)
        if found is not None and found.evidence > max(best.evidence, FOUND_NATS):
            best = found
        if best.evidence >= CLEAR_NATS:
            break
    return best


def read_luma(luma: Plane, layout: Layout) -> Reading:
    """The luma bands of a picture at its own size, or at the frame's if it is larger: a mark that was just written.

    It takes a fraction of a plain read's time and says a little less.
    """
    luma = resample(luma, (min(luma.shape[0], FRAME), min(luma.shape[1], FRAME)))
    return Reading(layout.white_scores(whiten(luma, window=scaled(WINDOW, luma.shape))))


def _refined(planes: NDArray[np.float32], layout: Layout, view: View) -> Reading | None:
    """The reading in a view after hill climbing on the evidence of its luma bands; None where no band has much.

    Crops of large pictures may keep chroma alone, which is coarse and needs no hill climbing.
    """

    def value(matrix: Matrix, offset: Vector) -> float:
        frame, present = undo(planes[:1], View.of(matrix, offset))
        return evidence(layout.luma_scores(frame[0], present))

    matrix, offset = np.array(view.matrix), np.array(view.offset)
    if value(matrix, offset) >= PROMISING_NATS:
        _, matrix, offset = hill_climb(value, matrix, offset, REFINE_ROUNDS, step=0.5)
        view = View.of(matrix, offset)
    elif _chroma_evidence(planes, layout, view) < PROMISING_NATS:
        return None
    frame, present = undo(planes, view)
    return Reading(layout.scores(frame, present), view)


def _chroma_evidence(planes: NDArray[np.float32], layout: Layout, view: View) -> float:
    """Evidence of the chroma bands in a view."""
    chroma, present = undo(planes[1:], view, CHROMA_SIDE)
    return evidence(layout.chroma_scores(centred(chroma, present)))
