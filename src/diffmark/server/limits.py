"""Limits of the service: what a request may cost, and how often a token may ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """Bounds on one request and on one token."""

    upload_bytes: int = 30_000_000  # a request's body
    pixels: int = 50_000_000  # an image
    images: int = 16  # images a request
    requests: int = 256  # at the same time, of one process
    seconds: float = 30.0  # until a request is given up
    per_minute: float = 120.0  # requests a token
    burst: int = 30
    pictures_a_day: int = 20_000  # that a token may ask about
    address_per_minute: float = 600.0  # requests of one network, with whatever tokens
    address_burst: int = 120
    painting: int = 4  # requests to generate at a time, the one at work included
    painting_seconds: float = 120.0  # until a request to generate is given up
    public_per_minute: float = 12.0  # questions of one network to the public verifier
    public_burst: int = 6

    def of_the_public(self) -> Limits:
        """The rate that networks without a token ask at."""
        return replace(self, per_minute=self.public_per_minute, burst=self.public_burst)


MAX_BUCKETS = 20_000  # full ones are forgotten beyond


class RateLimiter:
    """A bucket of `burst` requests a token, or a network, that refills at `per_minute`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._buckets: dict[Hashable, tuple[float, float]] = {}  # caller -> (requests left, when)

    def wait(self, token: Hashable, now: float | None = None) -> float:
        """Take one request: 0 if it may go on, else the seconds until it may."""
        now = time.monotonic() if now is None else now
        rate = self.limits.per_minute / 60
        with self._lock:
            if len(self._buckets) > MAX_BUCKETS:
                self._forget(now, rate)
            left, when = self._buckets.get(token, (float(self.limits.burst), now))
            left = min(self.limits.burst, left + (now - when) * rate)
            allowed = left >= 1
            self._buckets[token] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) / rate

    def _forget(self, now: float, rate: float) -> None:
        """Leave out the buckets that are full again: they are as new ones."""
        full = self.limits.burst
        kept = {
            who: entry for who, entry in self._buckets.items() if entry[0] + (now - entry[1]) * rate < full
        }
        self._buckets = kept
