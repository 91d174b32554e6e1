"""Roles, the audit log, and sealed identities, on both databases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from diffmark.registry import NotPermitted, Registry, RegistryError, audit_log, identities
from diffmark.registry.backup import backup, restore
from diffmark.registry.exchange import export_keys
from diffmark.registry.identities import VARIABLE, new_sealing_key

pytest_plugins = ("postgres",)


@pytest.fixture(autouse=True)
def _sealing_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, new_sealing_key())


def team(url: str) -> tuple[Registry, Registry, Registry, Registry]:
    """ann holds all roles; oscar issues, alice identifies, ivan investigates."""
    ann = Registry.open(url, actor="ann")
    for actor, role in (("oscar", "operator"), ("alice", "auditor"), ("ivan", "investigator")):
        ann.access.grant(actor, role)
    return ann, *(Registry.open(url, actor=actor) for actor in ("oscar", "alice", "ivan"))  # type: ignore[return-value]


def close(*registries: Registry) -> None:
    for registry in registries:
        registry.close()


def actions(registry: Registry) -> list[tuple[str, str]]:
    with registry.store.read() as connection:
        return [(entry.actor, entry.action) for entry in audit_log.entries(connection, 1000)]


def test_each_role_does_its_own_and_nothing_else(url: str, tmp_path: Path) -> None:
    ann, oscar, alice, ivan = team(url)
    key = oscar.issue("user-1")
    oscar.identities.set("user-1", "Una Example")
    assert alice.identify_bits(int(key)).verdict.principal == "user-1"
    assert ivan.identities.resolve("user-1", "case 1") == "Una Example"
    operators = {
        "issue": lambda r: r.issue("x"),
        "import": lambda r: r.import_keys(np.array([5], np.uint64)),
        "revoke": lambda r: r.revoke(principal="user-1"),
        "expire": lambda r: r.expire(5, principal="user-1"),
        "list": lambda r: r.list_keys(),
        "export": lambda r: export_keys(r, tmp_path / "keys.csv"),
        "backup": lambda r: backup(r, tmp_path / "backup"),
        "set identity": lambda r: r.identities.set("user-1", "Someone Else"),
    }
    for name, call in operators.items():
        for other in (alice, ivan):
            with pytest.raises(NotPermitted, match=f"may not {name}: that needs the role operator"):
                call(other)
            assert actions(ann)[-1] == (other.access.actor, f"refused: {name}")
    for other in (oscar, ivan):
        with pytest.raises(NotPermitted, match="may not identify"):
            other.identify_bits(int(key))
        assert actions(ann)[-1] == (other.access.actor, "refused: identify")
    for other in (oscar, alice):
        for call in (lambda r: r.identities.resolve("user-1", "why"), lambda r: r.identities.rotate()):
            with pytest.raises(NotPermitted, match="needs the role investigator"):
                call(other)
    stranger = Registry.open(url, actor="stranger")
    with pytest.raises(NotPermitted, match="the roles held are none"):
        stranger.stats()
    assert len(ann) == 1
    assert ann.verify().ok
    close(ann, oscar, alice, ivan, stranger)


def test_roles_are_given_and_taken_by_their_holders(url: str) -> None:
    ann, oscar, alice, ivan = team(url)
    with pytest.raises(NotPermitted, match="does not hold the role investigator"):
        oscar.access.grant("oscar", "investigator")
    oscar.access.grant("olga", "operator")
    oscar.access.withdraw("ann", "operator")
    with pytest.raises(NotPermitted):
        ann.issue("x")
    oscar.access.withdraw("olga", "operator")
    with pytest.raises(RegistryError, match="the last operator"):
        oscar.access.withdraw("oscar", "operator")
    with pytest.raises(RegistryError, match="role 'boss' is not known: use operator"):
        oscar.access.grant("x", "boss")
    with pytest.raises(RegistryError, match="must not be empty"):
        oscar.access.grant("", "operator")
    close(ann, oscar, alice, ivan)


def test_resolving_needs_a_reason_and_an_approval_if_asked_for(url: str) -> None:
    ann, oscar, alice, ivan = team(url)
    oscar.identities.set("user-1", "Una Example")
    with pytest.raises(NotPermitted, match="stated reason"):
        ivan.identities.resolve("user-1", "  ")
    with pytest.raises(RegistryError, match="no identity is stored for principal 'user-2'"):
        ivan.identities.resolve("user-2", "case 2")
    ivan.identities.require_approval("auditor", "policy 7")
    with pytest.raises(NotPermitted, match="needs an approved request"):
        ivan.identities.resolve("user-1", "case 1")
    number = ivan.identities.request("user-1", "case 1")
    with pytest.raises(NotPermitted, match="needs an approved request"):
        ivan.identities.resolve("user-1", "case 1")
    with pytest.raises(NotPermitted, match="does not hold the role auditor"):
        oscar.identities.approve(number)
    alice.identities.approve(number)
    with pytest.raises(RegistryError, match=f"request {number} is already approved"):
        alice.identities.approve(number)
    with pytest.raises(RegistryError, match="request 99 is unknown"):
        alice.identities.approve(99)
    assert ivan.identities.resolve("user-1", "case 1") == "Una Example"
    with pytest.raises(NotPermitted, match="needs an approved request"):  # an approval is for one look
        ivan.identities.resolve("user-1", "case 1")
    own = ann.identities.request("user-1", "case 3")
    with pytest.raises(NotPermitted, match="own: somebody else must approve"):
        ann.identities.approve(own)
    with pytest.raises(RegistryError, match="role 'boss' is not known"):
        ivan.identities.require_approval("boss")
    ivan.identities.require_approval("")
    assert ivan.identities.resolve("user-1", "case 4") == "Una Example"
    with pytest.raises(RegistryError, match="asks for no approval"):
        alice.identities.approve(own)
    trail = [action for actor, action in actions(ann) if actor == "ivan"]
    assert trail.count("resolve") == 3  # two names, and one question that had no answer
    assert ann.verify().ok
    close(ann, oscar, alice, ivan)


def test_identities_are_sealed_and_keys_rotate(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Registry.open(url) as registry:
        for number in range(3):
            registry.identities.set(f"user-{number}", f"Name {number}")
        registry.identities.set("user-0", "Name 0 again")
        with registry.store.read() as connection:
            rows = connection.execute(text("SELECT principal, sealed FROM identities")).all()
        assert not any(b"Name" in bytes(row.sealed) for row in rows)
        old, new = identities.os.environ[VARIABLE], new_sealing_key()
        monkeypatch.setenv(VARIABLE, new)
        with pytest.raises(RegistryError, match=f"which {VARIABLE} lacks"):
            registry.identities.resolve("user-1", "case")
        monkeypatch.setenv(VARIABLE, f"{new},{old}")
        assert registry.identities.resolve("user-1", "case") == "Name 1"
        assert registry.identities.rotate() == 3
        assert registry.identities.rotate() == 0
        monkeypatch.setenv(VARIABLE, new)
        assert registry.identities.resolve("user-0", "case") == "Name 0 again"
        with registry.store.write() as connection:  # a row swapped for another's does not open
            connection.execute(
                text(
                    "UPDATE identities SET sealed = (SELECT sealed FROM identities WHERE principal = 'user-2')"
                    " WHERE principal = 'user-1'"
                )
            )
        with pytest.raises(RegistryError, match="'user-1' was changed"):
            registry.identities.resolve("user-1", "case")
        monkeypatch.setenv(VARIABLE, "short")
        with pytest.raises(RegistryError, match="must hold 32 bytes"):
            registry.identities.resolve("user-1", "case")
        monkeypatch.delenv(VARIABLE)
        with pytest.raises(RegistryError, match="is not set"):
            registry.identities.set("user-9", "x")


def test_every_call_leaves_an_entry(url: str, tmp_path: Path) -> None:
    with Registry.open(url, actor="ann") as registry:
        key = registry.issue("a", reason="new account")
        registry.import_keys(np.array([1, 2], np.uint64))
        registry.identify_bits(int(key), reason="report 9")
        registry.identify_many(np.zeros((2, 64, 2)))
        registry.identify_together(np.zeros((2, 64, 2)))
        registry.revoke(principal="a")
        registry.expire(5, principal="key-2")
        registry.list_keys()
        registry.stats()
        export_keys(registry, tmp_path / "keys.csv")
        registry.identities.set("a", "Ann")
        registry.identities.resolve("a", "case 5")
        registry.identities.rotate()
        registry.access.grant("bob", "auditor")
        registry.access.withdraw("bob", "auditor")
        registry.identities.require_approval("")
        registry.identities.request("a", "case 6")
        backup(registry, tmp_path / "backup")
        entries = registry.log(100)
    expected = (
        "create issue import identify identify identify revoke expire list stats export set_identity resolve "
        "rotate grant withdraw require_approval request backup"
    )
    assert [entry.action.replace(" ", "_") for entry in entries] == expected.split()
    assert entries[1].reason == "new account"
    assert entries[3].reason == "report 9"
    assert all(len(entry.query_digest) == len(entry.result_digest) == 64 for entry in entries)
    assert entries[3].query_digest != entries[4].query_digest


def filled(url: str) -> Registry:
    registry = Registry.open(url, actor="ann")
    for number in range(5):
        registry.issue(f"user-{number}")
    assert registry.verify().ok
    return registry


def tamper(registry: Registry, *statements: str) -> None:
    """Change the log behind the registry's back, triggers off."""
    with registry.store.write() as connection:
        if registry.store.dialect == "postgresql":
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        else:
            connection.execute(text("DROP TRIGGER audit_append_only_update"))
            connection.execute(text("DROP TRIGGER audit_append_only_delete"))
        for statement in statements:
            connection.execute(text(statement))


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["UPDATE audit SET actor = 'mallory' WHERE seq = 3"], "entry 3 was edited"),
        (["UPDATE audit SET reason = 'innocent' WHERE seq = 6"], "entry 6 was edited"),
        (["UPDATE audit SET time = time + 1 WHERE seq = 1"], "entry 1 was edited"),
        (["DELETE FROM audit WHERE seq = 3"], "entries 3 ... 3 were removed"),
        (["DELETE FROM audit WHERE seq = 1"], "entries 1 ... 1 were removed"),
        (["DELETE FROM audit WHERE seq >= 5"], "should end with entry 6 and ends with 4"),
        (["DELETE FROM audit"], "should end with entry 6 and ends with 0"),
        (["DELETE FROM audit", "DELETE FROM settings WHERE name = 'audit_head'"], "is not in the log"),
        (
            ["UPDATE audit SET seq = 99 WHERE seq = 3", "UPDATE audit SET seq = 3 WHERE seq = 4",
             "UPDATE audit SET seq = 4 WHERE seq = 99"],
            "entry 3 does not follow entry 2",
        ),
        (["DELETE FROM settings WHERE name = 'audit_head'"], "record of the last entry was removed"),
        (["DELETE FROM keys WHERE id = 2"], "1 of 5 keys were deleted"),
    ],
)  # fmt: skip
def test_verify_finds_what_was_edited_removed_or_reordered(
    url: str, statements: list[str], problem: str
) -> None:
    registry = filled(url)
    anchor = registry.verify().head
    registry.verify(anchor)
    tamper(registry, *statements)
    result = registry.verify(anchor)
    assert not result.ok
    assert any(problem in found for found in result.problems), result.problems
    registry.close()


def test_a_whole_forged_chain_lacks_the_noted_head(url: str) -> None:
    """Somebody who may write the database can chain anew; the head noted elsewhere gives it away."""
    registry = filled(url)
    anchor = registry.verify().head
    tamper(registry, "DELETE FROM audit", "DELETE FROM settings WHERE name = 'audit_head'")
    with registry.store.write() as connection:
        for number in range(6):
            audit_log.append(connection, "mallory", "operator", "issue", "", number, number)
    assert registry.verify().ok
    assert registry.verify(anchor).problems == (
        f"the noted entry {anchor} is not in the log: it was rewritten or cut",
    )
    registry.close()


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'x'", "DELETE FROM audit"])
def test_the_database_itself_refuses_to_change_the_log(url: str, statement: str) -> None:
    registry = filled(url)
    with pytest.raises(RegistryError, match="append-only") as caught, registry.store.write() as connection:
        connection.execute(text(statement))
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert registry.verify().ok
    registry.close()


def test_backup_and_restore_between_databases(url: str, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    registry = filled(url)
    registry.identities.set("user-1", "Una")
    keys = registry.list_keys()
    assert backup(registry, path) == 5
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("backup")) == ["backup"]
    with pytest.raises(FileExistsError, match="never replaces"):
        backup(registry, path)
    registry.close()
    content = path.read_bytes()
    target = f"sqlite:///{tmp_path / 'restored.db'}"
    assert restore(path, target, actor="rita") == 5
    assert path.read_bytes() == content  # restoring does not touch the backup
    with Registry.open(target, actor="ann") as restored:
        assert restored.verify().ok
        assert restored.list_keys() == keys
        assert restored.identities.resolve("user-1", "case") == "Una"
        assert ("rita", "restore") in actions(restored)
        assert restored.identify_bits(int(keys[2])).verdict.principal == "user-2"
    with pytest.raises(RegistryError, match="is in use"):
        restore(path, target)
    with pytest.raises(FileNotFoundError, match="is not a file"):
        restore(tmp_path / "nothing", target)


def test_a_backup_goes_into_postgresql(tmp_path: Path, new_postgres) -> None:  # type: ignore[no-untyped-def]
    with Registry.open(f"sqlite:///{tmp_path / 'a.db'}", actor="ann") as registry:
        registry.issue_many([f"u{i}" for i in range(300)])
        backup(registry, tmp_path / "backup")
    url = new_postgres()
    assert restore(tmp_path / "backup", url) == 300
    with Registry.open(url, actor="ann", cache=False) as restored:
        assert restored.verify().ok
        assert restored.issue("next").id == 301


def test_a_tampered_backup_is_not_restored(tmp_path: Path) -> None:
    registry = filled(f"sqlite:///{tmp_path / 'a.db'}")
    tamper(registry, "UPDATE audit SET actor = 'x' WHERE seq = 2")
    backup(registry, tmp_path / "backup")
    registry.close()
    with pytest.raises(RegistryError, match="audit log of this backup is broken: entry 2 was edited"):
        restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'b.db'}")
