"""The public verifier over HTTP: what it says, what it keeps to itself, and what it refuses to fetch."""

from __future__ import annotations

import http.server
import io
import json
import socket
import struct
import threading
import zlib

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, PngImagePlugin
from pixel_vectors import SECRET, scene

from diffmark.detection.joint import open_detector
from diffmark.disclosure import xmp
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.secret import from_hex
from diffmark.server import fetching
from diffmark.server.app import create_app
from diffmark.server.fetching import FetchError, Place, fetch, is_public, resolve
from diffmark.server.limits import Limits, RateLimiter
from diffmark.server.public import Public, network
from diffmark.server.service import Service
from diffmark.server.words import LANGUAGES, chosen, words_in
from diffmark.verdict import PublicKeys, SigningKey, check


def png(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def pictures():
    plain = scene(1, (512, 384))
    info = PngImagePlugin.PngInfo()
    aigc = {"Label": "1", "ContentProducer": "Example"}
    packet = xmp.write(xmp.Fields("trainedAlgorithmicMedia", "Example AI", "Painter", "3", aigc=aigc))
    info.add_itxt("XML:com.adobe.xmp", packet.decode())
    marked = PixelCodec().embed(plain, from_hex(SECRET, 64)).image
    return {"plain": png(plain), "marked": png(marked), "declared": png(plain, pnginfo=info)}


@pytest.fixture(scope="module")
def site(tmp_path_factory, pictures):
    """A client of a service with a public verifier; `fetched` is what addresses give."""
    folder = tmp_path_factory.mktemp("public")
    registry = Registry.open(f"sqlite:///{folder / 'registry.db'}", actor="root")
    registry.issue("user-42")
    limits = Limits(public_per_minute=6000, public_burst=1000, upload_bytes=2_000_000, pixels=4_000_000)
    signing = SigningKey.create(folder / "key.pem")
    service = Service(open_detector("pixel"), registry, limits, signing=signing)
    public = Public(
        service, folder / "feedback.jsonl", signing, "Example", fetch=lambda *_: pictures["marked"]
    )
    with TestClient(create_app(service, public)) as client:
        client.folder = folder
        client.public = public
        yield client


def ask(site, data, **options):
    answer = site.post("/public/verify", files={"image": ("x.png", data)}, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def by_basis(answer):
    return {basis["basis"]: basis for basis in answer["bases"]}


def test_a_marked_picture_is_found_and_each_basis_named(site, pictures):
    answer = ask(site, pictures["marked"])
    assert (answer["verdict"], answer["error_rate"]) == ("marked", 1e-3)
    assert {name: basis["found"] for name, basis in by_basis(answer).items()} == {
        "watermark": True,
        "credentials": False,
        "metadata": False,
        "fingerprint": None,
    }
    assert "carries a mark" in answer["headline"]


def test_metadata_are_told_and_named_the_weaker_basis(site, pictures):
    answer = ask(site, pictures["declared"])
    assert answer["verdict"] == "declared"
    basis = by_basis(answer)["metadata"]
    assert basis["details"]["digital_source_type"] == "trainedAlgorithmicMedia"
    assert basis["details"]["aigc_producer"] == "Example"
    assert "anybody" in answer["sentences"][0]
    assert ask(site, pictures["plain"])["verdict"] == "nothing"


def test_no_margin_secret_or_account_leaves_it(site, pictures):
    for name, data in pictures.items():
        text = json.dumps(ask(site, data))
        for word in ("margin", "p_value", "user-42", SECRET, "evidence", "principal", "distance"):
            assert word not in text, (name, word)
    document = site.get("/openapi.json").json()
    fields = set(document["components"]["schemas"]["PublicAnswer"]["properties"])
    assert fields == {
        *(
            "verdict",
            "headline",
            "sentences",
            "error_rate",
            "sha256",
            "bytes",
            "time",
            "detector",
            "bases",
            "signed",
        )
    }


def test_the_verdict_is_coarse_two_marked_pictures_differ_in_nothing_but_the_file(site, pictures):
    other = png(PixelCodec().embed(scene(2, (640, 480)), from_hex(SECRET, 64)).image)
    first, second = ask(site, pictures["marked"]), ask(site, other)
    for answer in (first, second):
        for name in ("sha256", "bytes", "time", "signed"):
            answer.pop(name)
    assert first == second


def test_the_signed_verdict_states_a_bound_and_checks_with_the_served_key(site, pictures):
    answer = ask(site, pictures["marked"])
    keys = PublicKeys.from_jwks(site.get("/.well-known/jwks.json").json())
    statement, _ = check(json.dumps(answer["signed"]), keys, pictures["marked"])
    assert (statement.verdict, statement.basis) == ("marked", ("watermark",))
    assert (statement.error_is, statement.error_probability, statement.issuer) == ("bound", 1e-3, "Example")
    sheet = site.post("/public/sheet", data={"verdict": json.dumps(answer["signed"])})
    assert "data:image/svg+xml" in sheet.text
    assert "default-src 'none'" in sheet.headers["content-security-policy"]
    german = site.post("/public/sheet?lang=de", data={"verdict": json.dumps(answer["signed"])})
    assert "Die Datei trägt eine Markierung." in german.text
    changed = {**answer["signed"], "payload": answer["signed"]["payload"][:-4] + "AAAA"}
    assert site.post("/public/sheet", data={"verdict": json.dumps(changed)}).status_code == 422


def test_nothing_of_a_picture_is_kept_and_feedback_is_without_an_address(site, pictures):
    before = {path: path.read_bytes() for path in site.folder.iterdir() if "registry" not in path.name}
    log = len(site.public.service.registry.log(100))
    ask(site, pictures["marked"])
    after = {path: path.read_bytes() for path in site.folder.iterdir() if "registry" not in path.name}
    assert (before, log + 1) == (after, len(site.public.service.registry.log(100)))  # but for reading it
    given = {"text": "it is mine", "agrees": False, "sha256": "0" * 64, "verdict": "nothing"}
    assert site.post("/public/feedback", json=given).status_code == 201
    path = site.folder / "feedback.jsonl"
    row = json.loads(path.read_text())
    assert {**row, "time": ""} == {**given, "time": ""}
    assert path.stat().st_mode & 0o077 == 0
    assert site.post("/public/feedback", json={"text": "x" * 2001}).status_code == 422


def test_languages_follow_the_browser_and_the_switch(site, pictures):
    names = set(words_in("en").texts)
    for language in LANGUAGES:
        words = words_in(language)
        assert set(words.texts) == names
        page = site.get("/", headers={"Accept-Language": f"xx, {language};q=0.8, en;q=0.1"})
        assert f'<html lang="{language}">' in page.text
        assert words.texts["heading"] in page.text
        assert "{t:" not in page.text
        answer = ask(site, pictures["marked"], params={"lang": language}, headers={"Accept-Language": "en"})
        assert answer["headline"] == words.texts["marked_headline"]
    for other in set(LANGUAGES) - {"en"}:  # translated, not copied
        same = [name for name, text in words_in(other).texts.items() if text == words_in("en").texts[name]]
        assert set(same) <= {"sha_label", "no", "detector_label"}, (other, same)
    assert chosen("de", "fr").language == "de"
    assert chosen(None, "fr-CH, de;q=0.9").language == "fr"
    assert chosen(None, "de;q=0, nonsense;q=x, *").language == "en"
    assert chosen("tlh", "").language == "en"


def test_the_pages_need_nothing_from_elsewhere(site):
    for path in ("/", "/auditor", "/docs"):
        page = site.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http://" not in page.text.replace("http://www.w3.org", "").replace("http://cv.iptc.org", "")
        assert 'src="https:' not in page.text
    text = site.get("/docs").text
    for route in ("/v1/detect", "/public/verify", "/.well-known/jwks.json"):
        assert route in text


def test_bad_questions_are_refused(site, pictures):
    assert site.post("/public/verify").status_code == 422
    both = site.post("/public/verify", files={"image": ("x", b"x")}, data={"url": "https://example.org"})
    assert both.status_code == 422
    assert site.post("/public/verify", files={"image": ("x", b"not a picture")}).status_code == 422
    assert site.post("/public/verify", files={"image": ("x", b"0" * 2_100_000)}).status_code == 413
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)  # a bomb: 2.5 gigapixels in a few bytes

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10**6)))
    answer = site.post("/public/verify", files={"image": ("x", bomb)})
    assert answer.status_code == 422
    assert "pixels" in answer.json()["detail"]


def test_an_address_is_as_good_as_a_picture(site):
    answer = site.post("/public/verify", data={"url": "https://example.org/a.png"})
    assert answer.json()["verdict"] == "marked"

    def refuse(*_):
        raise FetchError("example.org: not an address of the public internet")

    site.public.fetch, kept = refuse, site.public.fetch
    try:
        answer = site.post("/public/verify", data={"url": "https://example.org/a.png"})
        assert (answer.status_code, "public internet" in answer.text) == (422, True)
    finally:
        site.public.fetch = kept


def test_each_network_has_its_own_rate(tmp_path, pictures):
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
    service = Service(open_detector("pixel"), registry, Limits(public_per_minute=0.01, public_burst=2))
    with TestClient(create_app(service, Public(service, tmp_path / "f"))) as client:
        codes = [client.post("/public/feedback", json={"text": "x"}).status_code for _ in range(4)]
        assert codes == [201, 201, 429, 429]
        assert client.get("/").status_code == 200
        assert client.post("/public/sheet", data={"verdict": "x"}).status_code == 429
    assert network("2001:db8:1:2:3::4") == network("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert network("::ffff:192.0.2.1") == network("192.0.2.1") == "192.0.2.1"
    limiter = RateLimiter(Limits(per_minute=60, burst=2))
    for number in range(30_000):
        limiter.wait(f"n{number}", now=number * 0.001)
    assert len(limiter._buckets) < 21_000


# --- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *("::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:0001::", "nonsense"),
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


def test_addresses_that_are_public():
    assert all(
        is_public(address) for address in ("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822")
    )


@pytest.mark.parametrize(
    "url",
    [
        *(
            "file:///etc/passwd",
            "ftp://example.org/",
            "//example.org",
            "http:///x",
            "http://a:b@93.184.216.34/",
        ),
        *(
            "http://93.184.216.34:8080/",
            "http://93.184.216.34:22/",
            "http://93.184.216.34:x/",
            "http://[::1/",
        ),
        *("http://127.0.0.1/", "http://2130706433/", "http://0x7f.1/", "http://[::ffff:127.0.0.1]/"),
        *("http://localhost/", "http://a\r\nb/", "http://ä/", "http://" + "a" * 3000),
    ],
)
def test_addresses_that_are_refused(url):
    with pytest.raises(FetchError):
        resolve(url)


def test_one_private_address_among_public_ones_is_enough(monkeypatch):
    def lookup(host, port, **_):
        names = ["93.184.216.34", "10.0.0.7"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", lookup)
    with pytest.raises(FetchError, match="public internet"):
        resolve("http://example.org/")


@pytest.fixture(scope="module")
def web():
    """A web server on loopback, which only tests that replace `resolve` can reach."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            routes = {
                "/to-private": (302, {"Location": "http://127.0.0.1/secret"}, b""),
                "/loop": (302, {"Location": "/loop"}, b""),
                "/to-picture": (302, {"Location": "/picture"}, b""),
                "/nowhere": (302, {}, b""),
                "/picture": (200, {}, b"picture"),
                "/large": (200, {}, b"x" * 5000),
                "/packed": (200, {"Content-Encoding": "gzip"}, b"x"),
                "/claims": (200, {"Content-Length": "99999999"}, b""),
            }
            if self.path == "/slow":
                self.send_response(200)
                self.end_headers()
                try:
                    for _ in range(100):
                        self.wfile.write(b"x")
                        self.wfile.flush()
                        threading.Event().wait(0.1)
                except OSError:
                    return
            status, headers, body = routes.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pretend(monkeypatch, web):
    """`example.org` is the test's server; everything else is resolved as ever."""

    def resolved(url):
        if not url.startswith("http://example.org"):
            return resolve(url)
        return Place("http", "example.org", web, url.removeprefix("http://example.org"), "127.0.0.1")

    monkeypatch.setattr(fetching, "resolve", resolved)


def test_what_is_fetched(pretend):
    assert fetch("http://example.org/picture", 1000, 5) == b"picture"
    assert fetch("http://example.org/to-picture", 1000, 5) == b"picture"
    for path, words in {
        "to-private": "public internet",
        "loop": "more than 3",
        "nowhere": "nowhere",
        "missing": "404",
        "large": "more than 1,000 bytes",
        "claims": "more than 1,000 bytes",
        "packed": "packs",
    }.items():
        with pytest.raises(FetchError, match=words):
            fetch(f"http://example.org/{path}", 1000, 5)


def test_a_slow_address_is_given_up(pretend):
    with pytest.raises(FetchError):
        fetch("http://example.org/slow", 1000, 0.5)


def test_images_of_every_kind_get_an_answer(site):
    rng = np.random.default_rng(1)
    for size in ((64, 64), (300, 5), (1, 1)):
        image = Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), np.uint8))
        answer = site.post("/public/verify", files={"image": ("x.png", png(image))})
        assert answer.status_code in (200, 422)


def test_the_public_resolver_finds_the_manifest_of_a_marked_picture_without_its_account(site):
    registry = site.public.service.registry
    key = registry.issue("user-43")
    registry.manifests.put("urn:c2pa:public-test", key.hex, b"store")
    marked = png(PixelCodec().embed(scene(2, (512, 384)), from_hex(key.hex, 64)).image)
    answer = site.post("/public/matches/byContent", content=marked, headers={"Content-Type": "image/png"})
    assert answer.json() == {"matches": [{"manifestId": "urn:c2pa:public-test", "similarityScore": 100}]}
    assert site.get("/public/manifests/urn:c2pa:public-test").content == b"store"
    binding = {"alg": "org.diffmark.latent64.1", "value": registry.manifests.handle(key.hex)}
    assert site.get("/public/matches/byBinding", params=binding).json() == answer.json()


def test_the_resolver_is_public_coarse_and_limited(site, pictures):
    assert site.get("/public/services/supportedAlgorithms").json()["watermarks"]
    binding = {"alg": "org.diffmark.latent64.1", "value": "AAAAAAAAAAAAAAAAAAAAAA=="}
    answer = site.get("/public/matches/byBinding", params=binding)
    assert (answer.status_code, answer.json()) == (200, {"matches": []})
    headers = {"Content-Type": "image/png"}
    answer = site.post("/public/matches/byContent", content=pictures["plain"], headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"matches": []})
    assert site.get("/v1/matches/byBinding", params=binding).status_code == 401
    kept, site.public.limiter = site.public.limiter, RateLimiter(Limits(per_minute=0.01, burst=1))
    try:
        codes = [site.get("/public/matches/byBinding", params=binding).status_code for _ in range(3)]
    finally:
        site.public.limiter = kept
    assert codes == [200, 429, 429]
