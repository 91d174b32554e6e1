"""Fits a mark to what its reader finds in copies of the marked picture: amplitudes of bits, tones, and the gain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.arrivals import CROPPED, HARSH, PLAIN, SHRUNK
from diffmark.pixel.spectrum import Plane
from diffmark.pixel.tones import Tones

# Mean scores of the bits that are asked of copies.
TARGETS = {"JPEG 75": 1.5, HARSH: 0.95, SHRUNK: 1.2, CROPPED: 1.4}
BLURRED_SCORE, CHROMA = 1.25, (0.4, 2.8)  # only chroma is left of a blurred copy: bounds of its share
MARGIN = 0.5  # of quality, for what the last round changes
MIN_GAIN, MAX_GAIN = 0.1, 5.0
GAIN_POWER = 0.8  # of the factor that scores lack: they grow faster than the gain after a JPEG
LOSS_POWER = 1.2  # 100 - SSIMULACRA2 grows with this power of the gain

WEIGHTS = {HARSH: 2.0, "JPEG 75": 2.0}  # of copies whose lost bits count more than once
SPREAD = 1.0  # deviation of a score between a copy and others of its kind
EVEN_STEPS, BIT_RATE, BAND_RATE = 40, 0.05, 0.03
WORTH = (0.3, 3.0)  # bounds of what a band is worth, over the mean of its plane
AMPLITUDES = (0.3, 3.0)  # least and largest of a bit

# Of tones, in root mean powers of what lies around them.
TONE_SCORES = {PLAIN: 3.3, SHRUNK: 2.05, CROPPED: 1.95}
MAX_TONE = 2.0  # rms of the tones over that of the bits
MAX_RAISE = 1.6  # of all tones, for the shrunk and the cropped copy
MIN_AMPLITUDE, MAX_AMPLITUDE = 0.02, 4.0


def next_gain(gain: float, loss: float, factor: float, worst: float, best: float) -> float:
    """The gain that multiplies scores by a factor, within the bounds of quality."""

    def at(quality: float) -> float:
        return gain * (max(100 - quality, 1e-3) / max(loss, 0.1)) ** (1 / LOSS_POWER)

    wanted = min(max(gain * factor**GAIN_POWER, at(best)), at(min(worst + MARGIN, 100)))
    return float(np.clip(wanted, MIN_GAIN, MAX_GAIN))


def next_chroma(share: float, score: float) -> float:
    """Chroma over luma, relative to what is usual, that lets a blurred copy reach its score."""
    return float(np.clip(share * (BLURRED_SCORE / max(score, 0.1)) ** GAIN_POWER, *CHROMA))


def evened(
    amplitudes: NDArray[np.float64],
    scores: NDArray[np.float64],
    weights: NDArray[np.float64],
    costs: NDArray[np.float64],
    planes: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Amplitudes (K, L) that lose the fewest bits over the copies and are as visible as those before.

    `scores` (A, K, L) is what each copy and band says for the secret, with the present amplitudes. In copy a, the
    score of a bit grows by g_ak = mean score / mean amplitude for each unit of amplitude in band k; another copy of
    the kind differs by SPREAD. So what is minimised is sum_a weight_a sum_b Phi(-sum_k s_akb / SPREAD), by gradient
    steps; the bands of a plane share sum_k cost_k mean_b a_kb^2.
    """
    slopes = np.maximum(scores.mean(axis=2), 0.01) / amplitudes.mean(axis=1)  # (A, K)
    total, found = scores.sum(axis=1), amplitudes
    groups = [planes == plane for plane in np.unique(planes)]
    budgets = [_cost(amplitudes, costs, group) for group in groups]
    for _ in range(EVEN_STEPS):
        s = total + slopes @ (found - amplitudes)  # (A, L)
        gain = (weights[:, None] * slopes).T @ np.exp(-((s / SPREAD) ** 2) / 2)  # (K, L)
        mean = np.maximum(gain.mean(axis=1, keepdims=True), 1e-9)
        found = np.clip(found + BIT_RATE * (gain / mean - 1), *AMPLITUDES)
        for group, budget in zip(groups, budgets, strict=True):
            worth = mean[group] / costs[group, None]
            found[group] *= np.clip(worth / worth.mean(), *WORTH) ** BAND_RATE
            found[group] *= np.sqrt(budget / _cost(found, costs, group))
    return found


def _cost(amplitudes: NDArray[np.float64], costs: NDArray[np.float64], group: NDArray[np.bool_]) -> float:
    return float(costs[group] @ np.mean(amplitudes[group] ** 2, axis=1))


class Constellation:
    """The tones of a mark in one picture, fitted so that a search finds them in every copy."""

    def __init__(self, tones: Tones, mask: Plane, first: float) -> None:
        self.tones, self.mask = tones, mask
        self._levels: dict[str, NDArray[np.float64]] = {}
        self._amplitudes = np.full(len(tones.phases), first)
        self._share = 1.0  # that MAX_TONE leaves of them

    def waves(self, bits: Plane) -> Plane:
        """What is added to luma beside these bits."""
        waves = self.tones.waves(self._amplitudes, self.mask.shape) * self.mask
        self._share = min(1.0, MAX_TONE * float(bits.std()) / max(float(waves.std()), 1e-9))
        return waves * self._share

    def fit(self, copies: dict[str, Plane]) -> None:
        """Each tone as strong as the plain copy asks for, all of them stronger where another copy needs it."""
        present, factor = self._amplitudes * self._share, 1.0
        fitted = present
        for name, white in copies.items():
            got, wanted = self.tones.responses(white), TONE_SCORES[name] * self._level(name, white)
            slope = max(float(got.mean()), 1e-3) / float(present.mean())
            if name == PLAIN:
                fitted = np.clip(present + (wanted - got) / slope, MIN_AMPLITUDE, MAX_AMPLITUDE)
            factor = max(factor, float(wanted.mean()) / slope / float(fitted.mean()))
        self._amplitudes = fitted * min(factor, MAX_RAISE)

    def _level(self, name: str, white: Plane) -> NDArray[np.float64]:
        """What tones have to stand out of in a copy; it hardly changes while a mark is fitted."""
        if name not in self._levels:
            self._levels[name] = self.tones.level(white)
        return self._levels[name]
