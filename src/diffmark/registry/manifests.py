"""Signed C2PA manifests of marked images, kept beside the keys, so that a mark leads back to stripped metadata.

A manifest names a key by its handle: 16 bytes that only this registry can lead back to the key. The key itself is
the secret in the image, and whoever knows it could write it into another one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from diffmark.registry import schema
from diffmark.registry.access import Access
from diffmark.registry.answers import Identification
from diffmark.registry.errors import RegistryError
from diffmark.registry.query import from_bits

LIMIT = 10  # matches, unless more are asked for


class Manifests:
    """The stored manifests, for one actor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.store = access.store

    def handle(self, key: str) -> str:
        """The public name (base64) of an issued key (hex)."""
        with self.store.read() as connection:
            return self._handle(connection, self._number(connection, key))

    def check(self, secrets: Iterable[Any]) -> None:
        """Raise unless each of these (hex or bits) is an issued key, before work is done on them."""
        with self.store.read() as connection:
            for key in secrets:
                self._number(connection, key)

    def put(self, name: str, key: str, data: bytes, reason: str = "") -> None:
        """Keep a manifest store under the URN of its active manifest (operator)."""
        with self.access.call("store manifest", reason) as connection:
            number = self._number(connection, key)
            handle = self._handle(connection, number)
            values = {"id": name, "key_id": number, "handle": handle, "created": schema.now(), "data": data}
            try:
                connection.execute(insert(schema.manifests).values(**values))
            except IntegrityError as error:
                raise RegistryError(f"the manifest {name} is there already") from error
            digest = hashlib.sha256(data).hexdigest()
            self.access.record(connection, "store manifest", reason, [name, handle], digest)

    def with_handle(self, handle: str, limit: int = LIMIT) -> list[str]:
        """URNs of the manifests that name this handle, the latest first."""
        with self.access.call("match manifests", "") as connection:
            found = self._of(connection, handle, limit)
            self.access.record(connection, "match manifests", "", [handle, limit], found)
        return found

    def of(self, answer: Identification, limit: int = LIMIT) -> list[tuple[str, float]]:
        """URNs and scores of the manifests of all keys that an identification finds significant, the best first."""
        rate = answer.verdict.rate or 0.0
        significant = [candidate for candidate in answer.candidates if candidate.family_wise <= rate]
        found: list[tuple[str, float]] = []
        with self.access.call("match manifests", "") as connection:
            for candidate in significant:
                handle = self._handle(connection, self._number(connection, candidate.key))
                names = self._of(connection, handle, limit - len(found)) if len(found) < limit else []
                found += [(name, candidate.score) for name in names]
            asked = [candidate.key for candidate in significant]
            self.access.record(connection, "match manifests", "", [asked, limit], found)
        return found

    def get(self, name: str) -> bytes | None:
        """The manifest store with this URN."""
        table = schema.manifests
        with self.access.call("read manifest", "") as connection:
            data = connection.scalar(select(table.c.data).where(table.c.id == name))
            self.access.record(connection, "read manifest", "", name, data is not None)
        return data

    def _of(self, connection: Connection, handle: str, limit: int) -> list[str]:
        table = schema.manifests
        statement = select(table.c.id).where(table.c.handle == handle)
        return list(connection.scalars(statement.order_by(table.c.created.desc(), table.c.id).limit(limit)))

    def _number(self, connection: Connection, key: Any) -> int:
        bits = from_bits(key).bits
        rows = self.store.rows_of(connection, [bits])
        if bits not in rows:
            raise RegistryError(
                "this secret is not a key of the registry: issue one with `diffmark keys issue`, or let "
                "`--principal` do it"
            )
        return rows[bits].id

    def _handle(self, connection: Connection, number: int) -> str:
        key = bytes.fromhex(self.store.setting(connection, schema.HANDLE_KEY))
        return base64.b64encode(hmac.digest(key, b"handle:%d" % number, "sha256")[:16]).decode()
