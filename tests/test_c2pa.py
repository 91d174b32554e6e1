from __future__ import annotations

import base64
import datetime
import json
import re
import sys
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import certificates
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, PngImagePlugin

from diffmark.c2pa import ALGORITHM, ManifestError, ManifestSigner, active_only, inspect
from diffmark.cli import main
from diffmark.detection.joint import open_detector
from diffmark.registry import NotPermitted, Registry, RegistryError
from diffmark.registry.backup import backup, restore
from diffmark.registry.operator_key import registry_ring
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token
from diffmark.vista.paint import painted_scenes

pytest_plugins = ("postgres",)

HANDLE = base64.b64encode(bytes(range(16))).decode()
ACTIONS = ("c2pa.created", "c2pa.watermarked.bound")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificates.make(tmp_path_factory.mktemp("pem"))


@pytest.fixture
def registry(tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        yield registry


@pytest.fixture
def detector(registry):
    return open_detector(key=registry_ring(registry))


def picture(path, seed=0):
    """A smooth picture, so that JPEG leaves the tiny detector's bits as they were, with other metadata."""
    x = np.linspace(0, 3, 64)
    waves = np.stack([np.sin(x[:, None] * (k + 1) + seed) * np.cos(x[None] * (3 - k)) for k in range(3)], -1)
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", "kept")
    Image.fromarray(np.uint8(127 + 100 * waves)).save(path, pnginfo=info, dpi=(72, 72))
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A painted picture without a mark."""
    path = tmp_path_factory.mktemp("scene") / "scene.png"
    next(painted_scenes(1)).save(path)
    return path


@pytest.fixture
def stripped(scene, tmp_path, pem, registry, capsys, monkeypatch):
    """URN, secret and file of a picture marked and signed by `diffmark embed`, saved anew as a JPEG."""
    registry.import_keys(np.random.default_rng(0).integers(0, 2**64, 1000, np.uint64))
    key = registry.issue("user-42")
    where = ["--registry", registry.store.place, "--actor", "root", "--json"]
    sign = ["embed", scene, "--out", tmp_path / "b.png", "--c2pa-cert", pem.chain, "--c2pa-key", pem.key]
    code, _, err = run(capsys, monkeypatch, *sign, *where)
    assert (code, "give --secret" in err) == (2, True)
    code, out, err = run(capsys, monkeypatch, *sign, *where, "--secret", key.hex)
    assert code == 0, err
    assert inspect(tmp_path / "b.png", pem.root).actions == ("c2pa.opened", "c2pa.watermarked.bound")
    with Image.open(tmp_path / "b.png") as image:
        image.convert("RGB").save(tmp_path / "stripped.jpg", quality=90)
    return json.loads(out)["manifest"], key.hex, tmp_path / "stripped.jpg"


def chunks(path):
    """(type, content) of the chunks of a PNG."""
    data, start, found = path.read_bytes(), 8, []
    while start < len(data):
        length = int.from_bytes(data[start : start + 4], "big")
        kind, content = data[start + 4 : start + 8], data[start + 8 : start + 8 + length]
        assert zlib.crc32(kind + content) == int.from_bytes(data[start + 8 + length :][:4], "big")
        found.append((kind, content))
        start += 12 + length
    return found


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["diffmark", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    return stop.value.code or 0, captured.out, captured.err


def test_signing_adds_a_manifest_and_nothing_else(tmp_path, pem):
    path = picture(tmp_path / "a.png")
    before = chunks(path)
    name, data = ManifestSigner(pem.chain, pem.key).sign(path, HANDLE)
    after = chunks(path)
    assert [chunk for chunk in after if chunk[0] != b"caBX"] == before
    assert dict(after)[b"caBX"] == data
    found = inspect(path, pem.root)
    assert (found.manifest, found.signature, found.content) == (name, "trusted", "unchanged")
    assert (found.algorithm, found.value, found.actions) == (ALGORITHM, HANDLE, ACTIONS)
    assert (found.signer, found.generator.split()[0], found.problems) == ("Test Signer", "DiffMark", ())
    assert list(tmp_path.glob("*.signed")) == []


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_other_formats(tmp_path, pem, suffix):
    path = tmp_path / f"a{suffix}"
    exif = Image.Exif()
    exif[0x010E] = "kept"
    Image.open(picture(tmp_path / "a.png")).save(path, exif=exif)
    with Image.open(path) as image:
        pixels = np.asarray(image).copy()
    ManifestSigner(pem.chain, pem.key).sign(path, HANDLE)
    with Image.open(path) as image:
        assert image.getexif()[0x010E] == "kept"
        assert (np.asarray(image) == pixels).all()
    assert inspect(path, pem.root).signature == "trusted"


def test_a_changed_file_a_changed_manifest_and_a_stranger(tmp_path, pem):
    path = picture(tmp_path / "a.png")
    ManifestSigner(pem.chain, pem.key).sign(path, HANDLE)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"kept", b"lost"))
    assert (inspect(path, pem.root).signature, inspect(path, pem.root).content) == ("trusted", "changed")
    other = base64.b64encode(bytes(16)).decode()
    path.write_bytes(whole.replace(HANDLE.encode(), other.encode()))
    found = inspect(path, pem.root)
    assert (found.signature, found.value) == ("broken", other)
    assert any("assertion.hashedURI.mismatch" in problem for problem in found.problems)
    path.write_bytes(whole)
    assert inspect(path).signature == "valid"
    (tmp_path / "other").mkdir()
    assert inspect(path, certificates.make(tmp_path / "other").root).signature == "valid"


def test_an_image_that_is_marked_later_keeps_its_history(tmp_path, pem):
    parent = picture(tmp_path / "parent.png")
    signer = ManifestSigner(pem.chain, pem.key)
    first, _ = signer.sign(parent, HANDLE)
    path = tmp_path / "marked.jpg"
    Image.open(parent).save(path)
    name, data = signer.sign(path, base64.b64encode(bytes(16)).decode(), parent=parent)
    found = inspect(path, pem.root)
    assert (found.manifest, found.signature) == (name, "trusted")
    assert found.actions == ("c2pa.opened", "c2pa.watermarked.bound")
    assert first.encode() in data
    alone = active_only(data)
    assert len(alone) < len(data)
    assert inspect(path, pem.root, alone).manifest == name


def test_errors_name_the_file(tmp_path, pem):
    path = picture(tmp_path / "a.png")
    with pytest.raises(ManifestError, match="a.png: has no C2PA manifest"):
        inspect(path)
    signer = ManifestSigner(pem.chain, pem.key)
    (tmp_path / "junk.png").write_bytes(b"junk")
    with pytest.raises(ManifestError, match="junk.png: cannot be signed"):
        signer.sign(tmp_path / "junk.png", HANDLE)
    assert list(tmp_path.glob("*.signed")) == []
    with pytest.raises(ManifestError, match="manifests go into .png"):
        signer.sign(tmp_path / "a.bmp", HANDLE)
    pem.root.chmod(0o600)
    with pytest.raises(ManifestError, match="not a private key in PEM"):
        ManifestSigner(pem.chain, pem.root)
    with pytest.raises(ManifestError, match="not a manifest store"):
        active_only(b"\0\0\0\x09junk!")


def test_the_registry_keeps_manifests_under_handles(url, tmp_path):
    with Registry.open(url, actor="root") as registry:
        key, other = registry.issue("user-1"), registry.issue("user-2")
        handle = registry.manifests.handle(key.hex)
        assert len(base64.b64decode(handle)) == 16
        assert handle == registry.manifests.handle(key.hex) != registry.manifests.handle(other.hex)
        for name in ("urn:c2pa:1", "urn:c2pa:2"):
            registry.manifests.put(name, key.hex, name.encode())
        registry.manifests.put("urn:c2pa:3", other.hex, b"three")
        with pytest.raises(RegistryError, match="is there already"):
            registry.manifests.put("urn:c2pa:1", key.hex, b"again")
        assert set(registry.manifests.with_handle(handle)) == {"urn:c2pa:1", "urn:c2pa:2"}
        assert len(registry.manifests.with_handle(handle, 1)) == 1
        assert registry.manifests.of(registry.identify_bits(other.hex)) == [("urn:c2pa:3", 1.0)]
        assert registry.manifests.of(registry.identify_bits(int(key) ^ 0xFFFFFFFF)) == []
        assert registry.manifests.get("urn:c2pa:1") == b"urn:c2pa:1"
        assert registry.manifests.get("urn:c2pa:9") is None
        with pytest.raises(RegistryError, match="not a key of the registry"):
            registry.manifests.handle("0" * 16)
        registry.access.grant("alice", "auditor")
        with Registry.open(url, actor="alice") as alice:
            assert alice.manifests.get("urn:c2pa:1") == b"urn:c2pa:1"
            with pytest.raises(NotPermitted):
                alice.manifests.put("urn:c2pa:4", key.hex, b"")
        assert registry.verify().ok
        backup(registry, tmp_path / "backup")
        restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}")
        with Registry.open(f"sqlite:///{tmp_path / 'new.db'}", actor="root") as restored:
            assert set(restored.manifests.with_handle(handle)) == {"urn:c2pa:1", "urn:c2pa:2"}


def test_a_backup_from_before_manifests_is_restored(registry, tmp_path):
    import sqlite3

    key = registry.issue("user-1")
    backup(registry, tmp_path / "backup")
    with sqlite3.connect(tmp_path / "backup") as old:
        old.executescript(
            "DROP TABLE manifests; DELETE FROM migrations WHERE name = 'create_manifests';"
            "DELETE FROM settings WHERE name = 'handle_key'"
        )
    old.close()
    before = (tmp_path / "backup").read_bytes()
    assert restore(tmp_path / "backup", f"sqlite:///{tmp_path / 'new.db'}") == 1
    assert (tmp_path / "backup").read_bytes() == before
    with Registry.open(f"sqlite:///{tmp_path / 'new.db'}", actor="root") as restored:
        assert len(restored.manifests.handle(key.hex)) == 24
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(RegistryError, match="not a backup"):
        restore(tmp_path / "other", f"sqlite:///{tmp_path / 'newer.db'}")


def test_sign_strip_upload_recover_verify(stripped, scene, tmp_path, pem, registry, detector):
    """The round trip over HTTP: a picture loses its metadata on the way, and the mark in it leads back to them."""
    name, secret, path = stripped
    with pytest.raises(ManifestError, match="no C2PA manifest"):
        inspect(path)
    service = Service(detector, registry, Limits(upload_bytes=300_000))
    token = {"Authorization": f"Bearer {grant_token(registry, 'ann', 'auditor')[1]}"}
    with TestClient(create_app(service)) as client:
        offered = client.get("/v1/services/supportedAlgorithms").json()
        assert offered == {"watermarks": [{"alg": ALGORITHM}], "fingerprints": []}

        def by_content(content, kind="image/jpeg", **query):
            headers = {**token, "Content-Type": kind}
            return client.post("/v1/matches/byContent", content=content, headers=headers, params=query)

        (match,) = by_content(path.read_bytes()).json()["matches"]
        assert match["manifestId"] == name
        assert match["similarityScore"] > 90
        answer = client.get(f"/v1/manifests/{name}", headers=token)
        assert answer.headers["content-type"] == "application/c2pa"
        assert secret.encode() not in answer.content
        found = inspect(path, pem.root, answer.content)
        assert (found.signature, found.content, found.manifest) == ("trusted", "changed", name)
        alone = client.get(f"/v1/manifests/{name}?returnActiveManifest=true", headers=token)
        assert inspect(path, pem.root, alone.content).manifest == name
        binding = {"alg": found.algorithm, "value": found.value}
        matches = client.get("/v1/matches/byBinding", params=binding, headers=token).json()
        assert matches == client.post("/v1/matches/byBinding", json=binding, headers=token).json()
        assert [match["manifestId"] for match in matches["matches"]] == [name]

        assert by_content(scene.read_bytes(), "image/png").json() == {"matches": []}
        assert by_content(b"junk").status_code == 422
        assert by_content(b"junk", "text/plain").status_code == 415
        assert by_content(b"x", alg="com.other.1").status_code == 400
        for wrong in ({"alg": "com.other.1"}, {"value": "?"}, {"value": "AAAA"}):
            answer = client.get("/v1/matches/byBinding", params=binding | wrong, headers=token)
            assert answer.status_code == 400
        unknown = client.get("/v1/manifests/urn:c2pa:00000000-0000-0000-0000-000000000000", headers=token)
        assert unknown.status_code == 404
        assert client.get("/v1/manifests/nonsense", headers=token).status_code == 422
    with Registry.open(registry.store.place, actor="root") as again:
        asked = {(entry.actor, entry.action) for entry in again.log(100)}
    assert {("ann", "identify"), ("ann", "match manifests"), ("ann", "read manifest")} <= asked


@pytest.mark.filterwarnings("ignore:the generation layer")  # the codec is untrained
def test_generate_signs_and_issues(tmp_path, pem, capsys, monkeypatch, model_folder, codec):
    codec.save_pretrained(tmp_path / "codec")
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    common = ["generate", "a b", "--model", model_folder, "--codec", tmp_path / "codec", "--steps", 2]
    signed = ["--c2pa-cert", pem.chain, "--c2pa-key", pem.key, "--registry", url, "--actor", "root"]
    code, out, err = run(
        capsys, monkeypatch, *common, "--out", tmp_path / "made", "--json", "--count", 2, *signed,
        "--principal", "user-7",
    )  # fmt: skip
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert len({record["manifest"] for record in records}) == 2
    for record in records:
        file = tmp_path / "made" / record["file"]
        assert inspect(file, pem.root).manifest == record["manifest"]
        assert record["secret"].encode() not in file.read_bytes()
        with Registry.open(url, actor="root") as registry:
            answer = registry.identify_bits(record["secret"])
            assert answer.verdict.principal == "user-7"
            assert registry.manifests.of(answer) == [(record["manifest"], 1.0)]
    code, out, _ = run(capsys, monkeypatch, "c2pa", "inspect", file, "--trust", pem.root, "--json")
    assert (code, json.loads(out)["signature"]) == (0, "trusted")
    code, out, _ = run(capsys, monkeypatch, "c2pa", "inspect", file)
    assert (code, "c2pa.created, c2pa.watermarked.bound" in out) == (0, True)
    code, _, err = run(capsys, monkeypatch, "c2pa", "inspect", pem.root)
    assert (code, "manifest" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, *common, "--out", tmp_path / "none", *signed)
    assert (code, "not a key of the registry" in err) == (2, True)
    assert not (tmp_path / "none").exists()
    half = ["--c2pa-cert", pem.chain, "--registry", url, "--actor", "root"]
    code, _, err = run(capsys, monkeypatch, *common, "--out", tmp_path / "none", *half)
    assert (code, "go together" in err) == (2, True)
    both = ["--registry", url, "--actor", "root", "--principal", "a", "--secret", "0" * 16]
    code, _, err = run(capsys, monkeypatch, *common, "--out", tmp_path / "none", *both)
    assert (code, "leave out" in err) == (2, True)


def test_recover_finds_without_a_service(stripped, scene, tmp_path, capsys, monkeypatch):
    name, _, path = stripped
    common = ["--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root"]
    recover = ["c2pa", "recover", "--out", tmp_path / "x.c2pa", *common]
    code, out, err = run(capsys, monkeypatch, *recover, path)
    assert (code, name in out) == (0, True), err
    code, out, _ = run(capsys, monkeypatch, "c2pa", "inspect", path, "--manifest", tmp_path / "x.c2pa")
    assert (code, name in out, "changed" in out) == (0, True, True)
    code, _, err = run(capsys, monkeypatch, *recover, scene)
    assert (code, "no manifest is known" in err) == (1, True)


def test_the_entry_for_the_list_of_algorithms_fits_its_schema():
    """Fields and patterns of softbinding-algorithm-list.schema.json (C2PA 2.3)."""
    entry = json.loads((Path(__file__).parents[1] / "docs" / "c2pa-algorithm.json").read_text())
    known = {"identifier", "alg", "type", "decodedMediaTypes", "entryMetadata", "softBindingResolutionApis"}
    assert set(entry) == known
    assert (entry["alg"], entry["type"], entry["decodedMediaTypes"]) == (ALGORITHM, "watermark", ["image"])
    assert 0 <= entry["identifier"] <= 65535
    namespace = r"[A-Za-z]{2,63}(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)+\.?"
    metadata = entry["entryMetadata"]
    assert all(re.fullmatch(namespace, name) for name in [entry["alg"], *metadata["categories"]])
    assert datetime.datetime.fromisoformat(metadata["dateEntered"].replace("Z", "+00:00")).tzinfo
    assert re.fullmatch(r"[^@\s]+@[^@\s]+\.[a-z]+", metadata["contact"])
    for address in (metadata["informationalUrl"], *entry["softBindingResolutionApis"]):
        assert urlsplit(address).scheme == "https"
    assert metadata["description"]
