"""What keeps the service from telling an attacker how near he is.

Somebody who may ask often, and learns a little more each time, can take a mark out of a picture step by step. So
exact figures and bits are for auditors alone, every token and network has a budget of pictures, and the same file
asked again gets the same answer.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from dataclasses import replace

from diffmark.detection.decision import Detection
from diffmark.server.limits import Limits
from diffmark.server.models import Found

MIN_SHOWN_P = 1e-6  # the smallest p-value that is shown to those who are not auditors
MAX_REMEMBERED = 4096  # answers that are remembered
COARSE = "exact figures are for auditors"


def coarse(found: Found) -> Found:
    """The answer without what a search for the boundary lives on: verdict, reader, and a power of ten."""
    p_value = (
        None
        if found.p_value is None
        else max(MIN_SHOWN_P, 10.0 ** math.ceil(math.log10(max(found.p_value, MIN_SHOWN_P))))
    )
    hidden = {"p_value": p_value, "matches": None, "threshold": None, "explanation": COARSE}
    return found.model_copy(update=hidden | ({} if found.verdict == "marked" else {"secret": ""}))


def pictures_of(limits: Limits) -> Limits:
    """The budget of pictures of a token, as a rate limiter takes it: all of it at once, or spread over the day."""
    return replace(limits, per_minute=limits.pictures_a_day / (24 * 60), burst=limits.pictures_a_day)


def addresses_of(limits: Limits) -> Limits:
    """The rate of one network, whatever tokens it has."""
    return replace(limits, per_minute=limits.address_per_minute, burst=limits.address_burst)


class Answers:
    """The latest detections by the digest of the file and of what was asked of it."""

    def __init__(self, kept: int = MAX_REMEMBERED) -> None:
        self.kept = kept
        self._lock = threading.Lock()
        self._found: OrderedDict[bytes, Detection] = OrderedDict()

    @staticmethod
    def name(data: bytes, question: bytes) -> bytes:
        return hashlib.sha256(hashlib.sha256(data).digest() + question).digest()

    def get(self, name: bytes) -> Detection | None:
        with self._lock:
            found = self._found.get(name)
            if found is not None:
                self._found.move_to_end(name)
            return found

    def put(self, name: bytes, found: Detection) -> None:
        with self._lock:
            self._found[name] = found
            while len(self._found) > self.kept:
                self._found.popitem(last=False)
