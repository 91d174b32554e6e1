"""Errors of the registry. Each names what was asked, what was found and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class RegistryError(Exception):
    """Something is wrong with the registry or with what was asked of it; nothing was changed."""


class NotPermitted(RegistryError):  # noqa: N818 - reads better where it is raised
    """The actor lacks the role, the reason or the approval that the call needs."""


_CAUSES = (
    (("database or disk is full", "no space left"), "the disk is full: free some space and try again"),
    (("file too large",), "the file may not grow further (size limit): raise the limit and try again"),
    (
        ("readonly database", "read-only transaction"),
        "it is read-only: every call is written to its audit log",
    ),
    (("database is locked", "lock timeout"), "another process held the write lock too long: try again"),
    (("malformed", "not a database"), "the file is damaged or not a registry: restore a backup"),
    (("unable to open",), "the file cannot be opened: does its folder exist, and may it be written?"),
    (("disk i/o error",), "reading or writing the file failed: check the disk"),
    (
        ("connection", "server closed", "terminating", "could not translate", "refused"),
        "the database cannot be reached or went away: check that it runs and that the URL is right",
    ),
)


@contextmanager
def explained(place: str, driver_error: type[Exception]) -> Iterator[None]:
    """Turn the database's error (SQLAlchemy's or its driver's own) into a RegistryError that says what to do."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (DBAPIError, driver_error) as error:
        cause = str(getattr(error, "orig", error)).strip()
        for signs, advice in _CAUSES:
            if any(sign in cause.lower() for sign in signs):
                raise RegistryError(f"{place}: {advice} (the database says: {cause})") from error
        raise RegistryError(f"{place}: the database refused: {cause}") from error
