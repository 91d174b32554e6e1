"""Rates that several worker processes keep together, in a small SQLite file that lives as long as the service."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Hashable
from pathlib import Path

from diffmark.server.limits import Limits

FORGET_EVERY = 5_000  # questions


class SharedLimiter:
    """Like `RateLimiter`, for all processes that open the same file under the same name."""

    def __init__(self, limits: Limits, path: Path, name: str) -> None:
        self.limits, self.path, self.name = limits, path, name
        self._own = threading.local()
        self._asked = 0
        with self._connection() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS buckets "
                "(name TEXT, who TEXT, left REAL, at REAL, PRIMARY KEY (name, who)) WITHOUT ROWID"
            )

    def wait(self, token: Hashable, now: float | None = None) -> float:
        """Take one request: 0 if it may go on, else the seconds until it may."""
        now = time.time() if now is None else now  # of the machine: processes have no other clock in common
        rate, who = self.limits.per_minute / 60, str(token)
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            row = connection.execute(
                "SELECT left, at FROM buckets WHERE name = ? AND who = ?", (self.name, who)
            ).fetchone()
            left, at = row or (float(self.limits.burst), now)
            left = min(self.limits.burst, left + max(0.0, now - at) * rate)
            allowed = left >= 1
            values = (self.name, who, left - 1 if allowed else left, now)
            connection.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, ?)", values)
            self._asked += 1
            if self._asked % FORGET_EVERY == 0:  # full buckets are as new ones
                full = (self.name, now, rate, self.limits.burst)
                connection.execute("DELETE FROM buckets WHERE name = ? AND left + (? - at) * ? >= ?", full)
        finally:
            connection.execute("COMMIT")
        return 0.0 if allowed else (1 - left) / rate

    def _connection(self) -> sqlite3.Connection:
        """One a thread; nothing of it has to survive the machine."""
        if not hasattr(self._own, "connection"):
            made = sqlite3.connect(self.path, timeout=10, isolation_level=None)
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("PRAGMA synchronous = OFF")
            self._own.connection = made
        found: sqlite3.Connection = self._own.connection
        return found
