"""Disclosures: XMP, AIGC and signed manifests by one command, checked before any work, read back."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from pixel_vectors import scene
from typer.testing import CliRunner

from diffmark.c2pa import ManifestError, ManifestSigner, inspect
from diffmark.cli import app
from diffmark.disclosure import Provider, declared_in, xmp
from diffmark.disclosure.declared import packet_in
from diffmark.disclosure.embedding import disclose
from diffmark.registry import Registry

FIELDS = xmp.Fields(
    "trainedAlgorithmicMedia", "Example & Söhne", "Painter <3>", "3.1", "2026-01-02T03:04:05Z"
)
TOML = """name = "Example AI"
system = "Painter"
version = "3.1"
[aigc]
producer = "001191110108MA01KP2T5U00000"
"""
SIGNER = """import sys
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
key = serialization.load_pem_private_key(open(sys.argv[1], "rb").read(), None)
r, s = decode_dss_signature(key.sign(sys.stdin.buffer.read(), ec.ECDSA(hashes.SHA256())))
sys.stdout.buffer.write(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
"""
run = CliRunner().invoke


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain") / "new"
    done = run(app, ["c2pa", "test-chain", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / "key.pem").stat().st_mode & 0o077 == 0
    return folder


@pytest.fixture
def provider(tmp_path, pem):
    path = tmp_path / "provider.toml"
    path.write_text(f'{TOML}[c2pa]\ncertificate = "{pem / "chain.pem"}"\nkey = "{pem / "key.pem"}"\n')
    return path


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp", "alpha.webp", "lossless.webp"])
def test_fields_are_read_back_and_pixels_and_other_metadata_stay(tmp_path, name):
    path = tmp_path / name
    image = scene(1, (201, 150))
    if name == "alpha.webp":
        image.putalpha(128)
    exif = Image.Exif()
    exif[0x010E] = "kept"
    image.save(
        path, quality=90, lossless=name == "lossless.webp", **({} if "lossless" in name else {"exif": exif})
    )
    before = Image.open(path)
    pixels, size = np.asarray(before), before.size
    disclose(path, FIELDS)
    disclose(path, FIELDS)  # once more: replaced, not doubled
    after = Image.open(path)
    assert (np.asarray(after) == pixels).all()
    assert after.size == size
    if "lossless" not in name:
        assert after.getexif()[0x010E] == "kept"
    assert xmp.read(packet_in(path.read_bytes())) == FIELDS
    assert path.read_bytes().count(b"AISystemUsed>") == 2
    found = declared_in(path.read_bytes())
    assert found is not None
    assert (found.by_ai, found.provider) == (True, "Example & Söhne")


def test_what_a_packet_says_besides_is_kept():
    other = xmp.write(xmp.Fields(source_type="digitalCapture", identifier="urn:uuid:1"))
    both = xmp.read(xmp.write(xmp.Fields(source_type="trainedAlgorithmicMedia"), other))
    assert (both.source_type, both.identifier) == ("trainedAlgorithmicMedia", "urn:uuid:1")


def test_hostile_packets_declare_nothing():
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa">]><x:xmpmeta xmlns:x="adobe:ns:meta/">&a;</x:xmpmeta>'
    for packet in (b"", b"<x:xmpmeta", bomb, b"\xff\xfe", b"<x:xmpmeta>" * 1000):
        assert xmp.read(packet) == xmp.Fields()
    assert declared_in(b"not an image") is None
    for text in (None, "", "[1]", "{}", "{", '{"AIGC": 1}'):
        assert xmp.read_aigc(text) is None
    assert xmp.read_aigc('{"AIGC": {"Label": "1", "Other": 2}}') == {"Label": "1"}


def test_one_command_writes_all_of_it(tmp_path, provider, pem):
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    scene(1, (400, 300)).save(tmp_path / "a.png")
    arguments = ["embed", str(tmp_path / "a.png"), "--out", str(tmp_path / "m.png"), "--principal", "user-42"]
    done = run(app, [*arguments, "--disclose", str(provider), "--registry", url, "--actor", "root", "--json"])
    assert done.exit_code == 0, done.output
    record = json.loads([line for line in done.output.splitlines() if line.startswith("{")][-1])
    seen = inspect(tmp_path / "m.png", pem / "root.pem")
    assert (seen.signature, seen.content, seen.generator) == ("trusted", "unchanged", "Painter 3.1")
    assert seen.disclosure == record["disclosure"]
    assert set(seen.disclosure) == {"provider", "system", "version", "time", "id"}
    assert seen.value is not None
    fields = xmp.read(packet_in((tmp_path / "m.png").read_bytes()))
    assert (fields.source_type, fields.identifier) == ("trainedAlgorithmicMedia", record["disclosure"]["id"])
    assert fields.aigc["Label"] == "1"
    assert fields.aigc["ContentProducer"] == "001191110108MA01KP2T5U00000"
    assert fields.aigc["ProduceID"] in record["disclosure"]["id"]
    assert set(fields.aigc) == set(xmp.AIGC_FIELDS)
    text = json.dumps(seen.to_dict())
    assert "user-42" not in text
    assert record["secret"] not in text


def test_without_a_registry_the_mark_is_named_but_not_bound(tmp_path, provider):
    scene(1, (400, 300)).save(tmp_path / "a.jpg")
    arguments = [
        "embed",
        str(tmp_path / "a.jpg"),
        "--out",
        str(tmp_path / "m.jpg"),
        "--disclose",
        str(provider),
    ]
    done = run(app, arguments)
    assert done.exit_code == 0, done.output
    seen = inspect(tmp_path / "m.jpg")
    assert (seen.signature, seen.value) == ("valid", None)
    assert "c2pa.watermarked.unbound" in seen.actions


def test_credentials_that_are_there_are_kept(tmp_path, pem):
    path = tmp_path / "a.png"
    scene(1, (100, 100)).save(path)
    signer = ManifestSigner(pem / "chain.pem", pem / "key.pem")
    first, _ = signer.sign(path, None)
    marked = tmp_path / "b.png"
    Image.open(path).save(marked)
    name, data = signer.sign(marked, None, parent=path)
    assert name != first
    assert first.encode() in data


def test_a_bad_certificate_is_said_before_anything_is_made(tmp_path, provider, pem):
    old = tmp_path / "old"
    assert run(app, ["c2pa", "test-chain", str(old), "--days", "-5"]).exit_code == 0
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    Registry.open(url, actor="root").close()
    scene(1, (100, 100)).save(tmp_path / "a.png")
    mixed = [str(pem / "chain.pem"), str(old / "key.pem")]
    expired = [str(old / "chain.pem"), str(old / "key.pem")]
    root = [str(pem / "root.pem"), str(pem / "key.pem")]
    for chain, key in (mixed, expired, root):
        for command in (["embed", str(tmp_path / "a.png"), "--out", str(tmp_path / "m")], ["generate", "x"]):
            given = ["--c2pa-cert", chain, "--c2pa-key", key, "--principal", "u", "--registry", url]
            made = ["--out", str(tmp_path / "made")] if command[0] == "generate" else []
            done = run(app, [*command, *given, *made, "--actor", "root"])
            assert isinstance(done.exception, ManifestError), (chain, done.output)
    assert not (tmp_path / "m").exists()
    assert not (tmp_path / "made").exists()
    with Registry.open(url, actor="root") as registry:
        assert len(registry) == 0


def test_a_command_can_hold_the_key(tmp_path, pem):
    (tmp_path / "sign.py").write_text(SIGNER)
    command = [sys.executable, str(tmp_path / "sign.py"), str(pem / "key.pem")]
    signer = ManifestSigner(pem / "chain.pem", command=command)
    signer.check()
    path = tmp_path / "a.png"
    scene(1, (100, 100)).save(path)
    signer.sign(path, None)
    assert inspect(path, pem / "root.pem").signature == "trusted"
    broken = ManifestSigner(pem / "chain.pem", command=[sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ManifestError):
        broken.check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = 1", "name is needed"),
        ('name = "a"', "system is needed"),
        (TOML + 'x = "y"', "x is not known"),
        (TOML.replace("[aigc]", 'source_type = "photo"\n[aigc]'), "source_type"),
        (TOML + "[c2pa]\n", "certificate"),
        (TOML + '[c2pa]\ncertificate = "no.pem"\nkey = "no.pem"', "no such file"),
        ("= =", "not TOML"),
    ],
)
def test_a_bad_provider_file_is_said(tmp_path, text, words):
    path = tmp_path / "provider.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        Provider.from_file(path)


@pytest.fixture
def authority(tmp_path):
    """A time-stamping authority on loopback: openssl behind HTTP."""
    config = tmp_path / "tsa.cnf"
    config.write_text(
        "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nO=Test\nCN=Test TSA\n"
        "[ext]\nextendedKeyUsage=critical,timeStamping\nkeyUsage=critical,digitalSignature\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nbasicConstraints=critical,CA:FALSE\n"
        "[tsa]\ndefault_tsa=t\n"
        f"[t]\nserial={tmp_path}/serial\ncrypto_device=builtin\nsigner_cert={tmp_path}/tsa.pem\n"
        f"signer_key={tmp_path}/tsa.key\nsigner_digest=sha256\ndefault_policy=1.2.3.4.1\n"
        "digests=sha256,sha384,sha512\naccuracy=secs:1\ness_cert_id_alg=sha256\ncerts="
        f"{tmp_path}/chain.pem\n"
    )
    for arguments in (
        "req -x509 -newkey rsa:2048 -nodes -days 10 -subj /O=Test/CN=Root -keyout root.key -out tsa-root.pem",
        "req -newkey rsa:2048 -nodes -config tsa.cnf -keyout tsa.key -out tsa.csr",
        "x509 -req -in tsa.csr -CA tsa-root.pem -CAkey root.key -CAcreateserial -days 9 -extfile tsa.cnf "
        "-extensions ext -out tsa.pem",
    ):
        subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True, cwd=tmp_path)
    leaf, root = ((tmp_path / name).read_text() for name in ("tsa.pem", "tsa-root.pem"))
    (tmp_path / "chain.pem").write_text(leaf + root)
    (tmp_path / "serial").write_text("01\n")
    asked = []

    class Stamp(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            query = tmp_path / f"query-{len(asked)}"
            query.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            command = ["openssl", "ts", "-reply", "-queryfile", str(query), "-config", str(config)]
            done = subprocess.run(command, capture_output=True)
            asked.append(done.returncode)
            self.send_response(200)
            self.send_header("Content-Type", "application/timestamp-reply")
            self.end_headers()
            self.wfile.write(done.stdout)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stamp)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_signatures_are_time_stamped_by_the_authority_that_is_named(tmp_path, pem, authority):
    address, asked = authority
    path = tmp_path / "a.png"
    scene(1, (100, 100)).save(path)
    ManifestSigner(pem / "chain.pem", pem / "key.pem", ta_url=address).sign(path, None)
    assert asked
    assert set(asked) == {0}
    assert inspect(path).time is not None
    assert os.path.getsize(path) > 0
