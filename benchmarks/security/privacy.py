"""What a stranger without the key learns: bits, whether two pictures are of one account, or of one operator."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from diffmark.pixel.tones import HIGH, LOW
from diffmark.statistics import auc
from security import spectra
from security.measuring import Row, Tasks, share
from security.testbed import FRESH, MANY, ONE, Testbed
from security.tones import spectrum

LINKED = 100  # pictures of each kind that are told apart, in pairs
LEARNT = 100  # marked pictures from which patterns are learnt


def tasks(testbed: Testbed) -> Tasks:
    yield "privacy: another key", partial(_other_key, testbed)
    if testbed.pool_size >= LINKED:
        yield "privacy: two pictures of one account", partial(_accounts, testbed)
        yield "privacy: two pictures of one operator", partial(_operators, testbed)
        yield "privacy: an operator learnt", partial(_learnt, testbed)


def _other_key(testbed: Testbed) -> Row:
    """Bits that somebody with another key reads, against the secrets."""
    victims = testbed.victims("test")
    read = np.stack([testbed.stranger.read(victim.marked).margins > 0 for victim in victims])
    right = read == np.stack([victim.secret for victim in victims])
    row = {"images": len(victims), "bits_read_right": share(right.ravel())}
    blind = [testbed.detectors[testbed.public.key.id].detect(victim.marked).marked for victim in victims]
    return row | {"called_marked_under_another_key": share(blind)}


def _accounts(testbed: Testbed) -> Row:
    """Does the correlation of features tell pairs of one secret from pairs of two? Area under the ROC curve."""
    same, fresh = (pairs(testbed.pool(kind, LINKED)) for kind in (ONE, FRESH))
    return {"pairs": len(same), "auc_one_secret_against_two": round(auc(same, fresh), 4)}


def _operators(testbed: Testbed) -> Row:
    """Are two pictures of one key told from two of different keys, with fresh secrets?"""
    one_key, other_keys = (pairs(_in_tones(testbed, kind, LINKED)) for kind in (FRESH, MANY))
    features = [pairs(testbed.pool(kind, LINKED)) for kind in (FRESH, MANY)]
    return {
        "pairs": len(one_key),
        "auc_by_tones": round(auc(one_key, other_keys), 4),
        "auc_by_bits": round(auc(*features), 4),
    }


def _in_tones(testbed: Testbed, kind: str, count: int) -> NDArray[np.float32]:
    """Spectra in the ring of the tones, real and imaginary parts, (N, D)."""
    rows = []
    for image in testbed.pool_images(kind, count):
        found = spectrum(image)
        fy, fx = np.fft.fftfreq(len(found), 1 / len(found))[:, None], np.arange(found.shape[1])[None]
        inside = found[(np.hypot(fx, fy) >= LOW) & (np.hypot(fx, fy) < HIGH)]
        rows.append(np.concatenate([inside.real, inside.imag]))
    return np.stack(rows)


def _learnt(testbed: Testbed) -> Row:
    """Who has seen pictures of an operator: does their space of patterns tell others of his from unmarked ones?"""
    directions = spectra.principal(testbed.pool(FRESH, LEARNT), 64)
    marked = [spectra.features(victim.marked) for victim in testbed.victims("test")]
    plain = [spectra.features(cover) for cover in testbed.covers("test")]
    inside = [np.array([np.sum((directions @ one) ** 2) for one in some]) for some in (marked, plain)]
    return {"images": len(marked), "seen": LEARNT, "auc_marked_against_unmarked": round(auc(*inside), 4)}


def pairs(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Correlations of disjoint neighbours, so that pairs are independent."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.sum(unit[0::2][: len(unit) // 2] * unit[1::2], axis=1).astype(np.float64)
