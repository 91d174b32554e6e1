"""The registry: issue keys, name the account behind decoded bits, and leave a trace of every call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sqlalchemy import func, select, update

from diffmark.registry import allocation, answers, audit_log, schema
from diffmark.registry import query as queries
from diffmark.registry.access import Access
from diffmark.registry.answers import RATE, Identification
from diffmark.registry.cache import cache_path
from diffmark.registry.errors import RegistryError
from diffmark.registry.identities import Identities
from diffmark.registry.keys import IssuedKeys, Key, check_principals, key_of
from diffmark.registry.manifests import Manifests
from diffmark.registry.query import Query
from diffmark.registry.search import Searcher
from diffmark.registry.store import Store

if TYPE_CHECKING:
    from diffmark.registry.clickhouse import ClickHouseSearcher

Context = Mapping[str, Any]  # model, endpoint, policy, ...


class Registry:
    """Open one with `Registry.open(url)`; it is a context manager."""

    def __init__(self, store: Store, searcher: Searcher | ClickHouseSearcher, access: Access) -> None:
        self.store = store
        self.searcher = searcher
        self.access = access
        self.identities = Identities(access)
        self.manifests = Manifests(access)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        actor: str | None = None,
        cache: bool | str | Path = True,
        index: bool = False,
    ) -> Registry:
        """Open, or make, the registry at a URL (sqlite:///path, postgresql://..., clickhouse://...?rows=URL).

        `actor` is who asks (default: DIFFMARK_ACTOR or the system's user). `cache` keeps the keys as an array
        beside the rows (a path to choose where, False to search the rows themselves). `index` builds the
        in-memory index at the first search: 24 bytes a key, for services that answer many queries.
        """
        if url.startswith("clickhouse"):
            from diffmark.registry.clickhouse import open_clickhouse

            return open_clickhouse(url, actor=actor)
        store = Store(url)
        place = Path(cache) if isinstance(cache, (str, Path)) else cache_path(store) if cache else False
        return cls(store, Searcher(store, True if place is None else place, index), Access(store, actor))

    def close(self) -> None:
        """Give back the connections."""
        self.store.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of keys ever issued, revoked ones included."""
        with self.store.read() as connection:
            return self.store.count(connection)

    # --- keys ------------------------------------------------------------------------------------------

    def issue(
        self, principal: str, *, context: Context | None = None, expires: int | None = None, reason: str = ""
    ) -> Key:
        """A new key for one principal; durable when this returns. `expires` in microseconds since 1970."""
        return self.issue_many([principal], context=context, expires=expires, reason=reason)[0]

    def issue_many(
        self,
        principals: Sequence[str],
        *,
        context: Context | None = None,
        expires: int | None = None,
        reason: str = "",
    ) -> Sequence[Key]:
        """New keys, one for each principal in order; all of them or none."""
        check_principals(principals)
        text = None if not context else json.dumps(dict(context), sort_keys=True)
        with self.access.call("issue", reason) as connection:
            keys = allocation.allocate(self.store, connection, len(principals))
            created = schema.now()
            columns: dict[str, Any] = {"created": created}
            if text is not None:
                columns["context"] = [text] * len(principals)
            if expires is not None:
                columns["expires"] = expires
            ids = self.store.insert(connection, keys, principals, columns)
            asked = [_digest("\n".join(principals).encode()), text, expires]
            self.access.record(connection, "issue", reason, asked, _digest(keys.tobytes()))
        return IssuedKeys(ids, keys, principals, created, expires, text)

    def import_keys(
        self,
        keys: ArrayLike,
        principals: Sequence[str] | None = None,
        *,
        columns: Mapping[str, Sequence[Any]] | None = None,
        reason: str = "",
    ) -> range:
        """Add keys made elsewhere, uint64 (N,); principals default to `key-<id>`. Returns their ids.

        `columns` may give created, expires, revoked and context (JSON text), one entry a key.

        A key that is there already is an error and nothing is added. Distances between keys are not checked:
        error probabilities hold if the keys were drawn at random.
        """
        array = np.ascontiguousarray(keys)
        if array.dtype != np.uint64 or array.ndim != 1 or not len(array):
            raise ValueError(f"keys must be a uint64 array of shape (N,), got {array.dtype} {array.shape}")
        unknown = set(columns or {}) - {"created", "expires", "revoked", "context"}
        if unknown:
            raise ValueError(f"columns may be created, expires, revoked and context, got {sorted(unknown)}")
        for name, values in {"principals": principals, **(columns or {})}.items():
            if values is not None and len(values) != len(array):
                raise ValueError(f"{name} must have one entry a key: {len(array)}, got {len(values)}")
        if principals is not None:
            check_principals(principals)
        with self.access.call("import", reason) as connection:
            ids = self.store.insert(connection, array, principals, columns)
            names = None if principals is None else _digest("\n".join(principals).encode())
            self.access.record(
                connection, "import", reason, [_digest(array.tobytes()), names], [ids[0], ids[-1]]
            )
        return ids

    def revoke(self, *, key: str | None = None, principal: str | None = None, reason: str = "") -> int:
        """Revoke one key (hex) or all of a principal; returns how many. Revoked keys are still identified."""
        return self._end("revoke", "revoked", schema.now(), key, principal, reason)

    def expire(
        self, moment: int, *, key: str | None = None, principal: str | None = None, reason: str = ""
    ) -> int:
        """Set when one key (hex), or all of a principal, expire: microseconds since 1970. Returns how many."""
        return self._end("expire", "expires", moment, key, principal, reason)

    def _end(
        self, action: str, column: str, moment: int, key: str | None, principal: str | None, reason: str
    ) -> int:
        if (key is None) == (principal is None):
            raise ValueError(f"{action} needs either key or principal, got {'both' if key else 'neither'}")
        table = schema.keys
        statement = update(table).where(table.c.revoked.is_(None)).values({column: moment})
        if key is not None:
            signed = int(np.uint64(queries.from_bits(key).bits).astype(np.int64))
            statement = statement.where(table.c.key == signed)
        else:
            statement = statement.where(table.c.principal == principal)
        with self.access.call(action, reason) as connection:
            changed = connection.execute(statement).rowcount
            self.access.record(connection, action, reason, [key, principal, moment], changed)
        if not changed:
            named = repr(principal) if key is None else "the given one"  # a key is in no message
            raise RegistryError(f"no key to {action}: {named} is unknown or revoked already")
        return changed

    def list_keys(
        self, *, principal: str | None = None, after: int = 0, limit: int | None = 100, reason: str = ""
    ) -> list[Key]:
        """Keys in the order of issue, of one principal if given."""
        table = schema.keys
        statement = select(table).where(table.c.id > after).order_by(table.c.id).limit(limit)
        if principal is not None:
            statement = statement.where(table.c.principal == principal)
        with self.access.call("list", reason) as connection:
            rows = connection.execute(statement).all()
            self.access.record(connection, "list", reason, [principal, after, limit], len(rows))
        moment = schema.now()
        return [key_of(row, moment) for row in rows]

    def stats(self) -> dict[str, Any]:
        """Counts and sizes."""
        table, moment = schema.keys, schema.now()
        with self.access.call("stats", "") as connection:
            issued = self.store.count(connection)
            revoked = connection.scalar(select(func.count()).where(table.c.revoked.is_not(None)))
            expired = connection.scalar(
                select(func.count()).where(table.c.revoked.is_(None), table.c.expires <= moment)
            )
            principals = connection.scalar(select(func.count(table.c.principal.distinct())))
            entries = connection.scalar(select(func.count()).select_from(schema.audit))
            self.access.record(connection, "stats", "", "", "")
        return {
            "registry": self.store.place,
            "keys": issued,
            "live": issued - (revoked or 0) - (expired or 0),
            "revoked": revoked,
            "expired": expired,
            "principals": principals,
            "audit_entries": entries,
        }

    # --- identification --------------------------------------------------------------------------------

    def identify(self, detection: Any, top: int = 10, **options: Any) -> Identification:
        """Whose key does one image carry? Takes a Detection or logits of shape (64, 2); soft ranking.

        Options as in `identify_many`.
        """
        return self.identify_many([detection], top, **options)[0]

    def identify_bits(self, bits: Any, top: int = 10, **options: Any) -> Identification:
        """The same from bits alone (int, hex, or 64 bits); hard ranking by Hamming distance."""
        return self._answer([queries.from_bits(bits)], top, **options)[0]

    def identify_many(self, detections: Iterable[Any], top: int = 10, **options: Any) -> list[Identification]:
        """One answer for each of many images, in one pass over the keys and one audit entry.

        Options: `rate`, the family-wise error of the verdict (None: closed set, the best is always named);
        `hard=True` ranks by Hamming distance; `within` leaves out candidates of larger cost; `path` insists on
        one way of searching; `reason` goes into the audit log.
        """
        hard = options.pop("hard", False)
        readings = [
            [queries.margins_of(one) for one in (detection, *getattr(detection, "others", ()))]
            for detection in detections
        ]
        asked = [
            queries.from_bits(m > 0) if hard else queries.from_margins(m) for ways in readings for m in ways
        ]
        return self._answer(asked, top, ways=[len(ways) for ways in readings], **options)

    def identify_together(self, detections: Iterable[Any], top: int = 10, **options: Any) -> Identification:
        """One answer for several images known to come from one account: their evidence is summed."""
        margins = [queries.margins_of(detection) for detection in detections]
        if not margins:
            raise ValueError("identify_together needs at least one detection, got none")
        return self._answer([queries.from_margins(np.sum(margins, axis=0))], top, **options)[0]

    def _answer(
        self,
        asked: Sequence[Query],
        top: int,
        rate: float | None = RATE,
        within: int | None = None,
        path: str | None = None,
        reason: str = "",
        ways: Sequence[int] | None = None,
    ) -> list[Identification]:
        """An answer for each query, or for each run of `ways` queries that read one image in several ways."""
        if not asked:
            return []
        tries = [count for count in ways or [1] * len(asked) for _ in range(count)]
        if within is not None and within < 0:
            raise ValueError(f"within is a cost and must not be negative, got {within}")
        self.access.check("identify", reason)
        hits, taken = self.searcher.search(asked, top, within, path)
        with self.store.read() as connection:
            keys = self.store.count(connection)
            rows = self.store.rows_of(connection, {key for _, found in hits for key in found.tolist()})
        moment = schema.now()
        each = iter(
            answers.answer(query, found, rows, keys, rate, moment, taken, tried)
            for query, found, tried in zip(asked, hits, tries, strict=True)
        )
        results = [
            min((next(each) for _ in range(count)), key=lambda one: one.verdict.family_wise)
            for count in ways or [1] * len(asked)
        ]
        query_digests = [[f"{query.bits:016x}", query.weights.tolist()] for query in asked]
        with self.access.call("identify", reason) as connection:  # durable before anybody sees the answer
            self.access.record(connection, "identify", reason, query_digests, [r.to_dict() for r in results])
        return results

    # --- audit -----------------------------------------------------------------------------------------

    def verify(self, anchor: str | None = None) -> audit_log.Verification:
        """Check the audit log (see `audit_log.verify`) and that no row of a key is missing."""
        with self.store.read() as connection:
            result = audit_log.verify(connection, anchor)
            held = connection.scalar(select(func.count()).select_from(schema.keys)) or 0
            issued = self.store.count(connection)
        if held == issued:
            return result
        return audit_log.Verification(
            result.entries, result.head, (*result.problems, f"{issued - held} of {issued} keys were deleted")
        )

    def log(self, last: int = 20) -> list[audit_log.Entry]:
        """The latest audit entries; looking at them is itself written down."""
        with self.access.call("read log", "") as connection:
            found = audit_log.entries(connection, last)
            self.access.record(connection, "read log", "", last, len(found))
        return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
