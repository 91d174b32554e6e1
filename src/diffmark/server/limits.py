"""Limits of the service: what a request may cost, and how often a token may ask."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on one request and on one token."""

    upload_bytes: int = 30_000_000  # a request's body
    pixels: int = 50_000_000  # an image
    images: int = 16  # images a request
    requests: int = 64  # at the same time; more would wait for a thread without an end in sight
    seconds: float = 30.0  # until a request is given up
    per_minute: float = 120.0  # requests a token
    burst: int = 30
    painting: int = 4  # requests to generate at a time, the one at work included
    painting_seconds: float = 120.0  # until a request to generate is given up


class RateLimiter:
    """A bucket of `burst` requests a token that refills at `per_minute`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._buckets: dict[int, tuple[float, float]] = {}  # token id -> (requests left, when)

    def wait(self, token: int, now: float | None = None) -> float:
        """Take one request: 0 if it may go on, else the seconds until it may."""
        now = time.monotonic() if now is None else now
        rate = self.limits.per_minute / 60
        with self._lock:
            left, when = self._buckets.get(token, (float(self.limits.burst), now))
            left = min(self.limits.burst, left + (now - when) * rate)
            allowed = left >= 1
            self._buckets[token] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) / rate
