"""The operator's keys at a registry: its own from the first start, the same for writing and for reading.

The registry's database holds the id of the key that its marks are written with, never the key. The ring comes from
where operator keys come from (`diffmark.keys.ring`); if there is none, the first start makes one.
"""

from __future__ import annotations

from diffmark.keys.ring import PUBLIC_KEY, KeyRing, RingLike, as_ring, find_ring, new_ring, ring_path
from diffmark.registry.errors import RegistryError
from diffmark.registry.registry import Registry

SETTING = "operator_key"  # id of the key that marks are written with
ACTION = "set operator key"


def registry_ring(registry: Registry, key: RingLike = None) -> KeyRing:
    """The ring that a registry's marks are written and read with; made if there is none.

    A registry of before operator keys has marks under the public key: its new ring goes on reading them.
    """
    with registry.store.read() as connection:
        known = registry.store.setting(connection, SETTING)
        issued = registry.store.count(connection)
    ring = as_ring(key) if key is not None else find_ring()
    if key is None and ring.is_public and known in ("", *ring.ids):
        if known:  # somebody chose the public key for it
            return ring
        try:
            ring = new_ring(ring_path(), (PUBLIC_KEY,) if issued else ())
        except FileExistsError:  # another process was first
            ring = find_ring()
    if known and known not in ring.ids:
        raise RegistryError(
            f"{registry.store.place}: its marks are written with operator key {known}, and here is {ring}; "
            "give the right keys with --key or DIFFMARK_KEY_FILE"
        )
    if ring.current.id != known and "operator" in _roles(registry):
        with registry.access.call(ACTION, "") as connection:
            registry.store.put_setting(connection, SETTING, ring.current.id)
            registry.access.record(connection, ACTION, "", ring.current.id, known)
    return ring


def _roles(registry: Registry) -> set[str]:
    with registry.store.read() as connection:
        return registry.access.roles(connection)
