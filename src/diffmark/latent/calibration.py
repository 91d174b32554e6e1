"""Calibration: what a codec's decoder says about images that carry no mark, measured and stored with the codec.

With a secret at hand the test is exact and needs no calibration. Without one ("is there any mark?") the only
evidence is how sure the decoder is, and how sure it is on unmarked images has to be measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diffmark.latent.lean import Lean

# Upper-tail probabilities at which the scores of the negatives are kept.
TAIL = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 5e-3, 2e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5)
MIN_UNMARKED = 20  # unmarked images of a calibration
MIN_UNMARKED_FOR_LEAN = 500  # of the lean of its bits


def evidence(margins: ArrayLike) -> Any:
    """How sure the decoder is, which needs no secret: mean |margin|, (..., L) -> (...)."""
    return np.abs(np.asarray(margins, dtype=np.float64)).mean(axis=-1)


def check_negatives(count: int) -> None:
    """Whether so many unmarked images are enough for a calibration."""
    if count < MIN_UNMARKED:
        raise ValueError(f"a calibration needs at least {MIN_UNMARKED} unmarked images, got {count}")


@dataclass(frozen=True)
class Calibration:
    """Scores of unmarked images, as an upper tail, with what they were measured on."""

    negatives: int
    tail: tuple[tuple[float, float], ...]  # (p, score): a share p of the negatives scores at least this
    measured: dict[str, Any] = field(default_factory=dict)  # bit accuracy, PSNR, images used ...
    # Half-precision digests of the autoencoders that it holds for; () is not known.
    vaes: tuple[str, ...] = ()
    lean: Lean | None = None  # None: margins are taken as they are

    def whitened(self, margins: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Margins (..., L) of the network without what unmarked images have in common."""
        return margins if self.lean is None else self.lean.whitened(margins)

    @classmethod
    def of_margins(
        cls, margins: ArrayLike, measured: dict[str, Any] | None = None, vae: str | None = None
    ) -> Calibration:
        """From the network's own margins of unmarked images, (N, L): their evidence, and their lean."""
        values = np.asarray(margins, dtype=np.float64)
        lean = Lean.measure(values) if len(values) >= MIN_UNMARKED_FOR_LEAN else None
        return replace(cls.measure(evidence(values), measured, vae), lean=lean)

    @classmethod
    def measure(
        cls, scores: ArrayLike, measured: dict[str, Any] | None = None, vae: str | None = None
    ) -> Calibration:
        """From the evidence of unmarked images, read through the autoencoder with the digest `vae`.

        Only tails that the number of images supports are kept.
        """
        ordered = np.sort(np.asarray(scores, dtype=np.float64))[::-1]
        check_negatives(ordered.size)
        count = ordered.size
        # The k-th largest of n has p-value k / (n + 1); a p below 1 / (n + 1) is not known.
        tail = [(p, float(ordered[int(p * (count + 1)) - 1])) for p in TAIL if 1 <= p * (count + 1) <= count]
        return cls(count, tuple(tail), measured or {}, (vae,) if vae else ())

    def stricter(self, other: Calibration) -> Calibration:
        """At each tail the higher score of the two: its p-values hold for the images and autoencoders of either."""
        there = dict(other.tail)
        tail = tuple((p, max(score, there[p])) for p, score in self.tail if p in there)
        known = self.vaes and other.vaes  # with either unknown it is not known which it holds for
        vaes = tuple(dict.fromkeys(self.vaes + other.vaes)) if known else ()
        measured = {**other.measured, **self.measured}
        return Calibration(min(self.negatives, other.negatives), tail, measured, vaes, self.lean)

    @property
    def smallest(self) -> float:
        """The smallest p-value that it can state."""
        return min((p for p, _ in self.tail), default=1.0)

    def p_value(self, score: float) -> float:
        """Share of unmarked images with at least this evidence, rounded up to the next kept tail."""
        return min((p for p, kept in self.tail if score > kept), default=1.0)

    def to_dict(self) -> dict[str, Any]:
        values = asdict(replace(self, lean=None))
        return values | {"lean": self.lean.to_dict() if self.lean else None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Calibration:
        values = dict(values)
        if values.pop("kind", "margin") != "margin":
            raise ValueError(
                "it is calibrated by evidence of codecs that were retired: calibrate with --fresh"
            )
        values["tail"] = tuple((float(p), float(score)) for p, score in values["tail"])
        values["vaes"] = tuple(values.get("vaes", ()))
        lean = values.get("lean")
        values["lean"] = Lean.from_dict(lean) if lean else None
        return cls(**values)
