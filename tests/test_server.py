from __future__ import annotations

import io
import json
import logging
import threading
import time

import numpy as np
import pytest
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient
from PIL import Image

from diffmark.detection.latent import Detector
from diffmark.detection.pixel import PixelDetector
from diffmark.images import read_image
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.batching import Batcher, OverloadError
from diffmark.server.limits import Limits, RateLimiter
from diffmark.server.reading import Reading
from diffmark.server.service import Service
from diffmark.server.tokens import Tokens, grant_token

GENEROUS = Limits(per_minute=1e6, burst=10_000, upload_bytes=300_000, pixels=200_000, images=3)


def png(seed=0, size=(64, 64)):
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def detector():
    return Detector(tiny_codec(), _build("sd").pipe.vae)


@pytest.fixture
def service(tmp_path, detector):
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
    return Service(detector, registry, GENEROUS)


@pytest.fixture
def client(service):
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def headers(service):
    """`headers(role)`: the headers of a fresh token."""

    def make(role="auditor", name=None, days=1.0):
        _, text = grant_token(service.registry, name or f"a-{role}", role, days)
        return {"Authorization": f"Bearer {text}"}

    return make


def files(*contents):
    return [("images", (f"{index}.png", data, "image/png")) for index, data in enumerate(contents)]


ROUTES = [
    ("POST", "/v1/detect", {"files": files(png())}, {"auditor", "operator"}),
    ("POST", "/v1/identify", {"files": files(png())}, {"auditor"}),
    ("POST", "/v1/examine", {"files": {"image": png()}}, {"auditor", "operator"}),
    ("POST", "/v1/generate", {"json": {"principal": "user-1", "prompt": "a hill"}}, {"operator"}),
    ("GET", "/v1/me", {}, {"auditor", "operator", "investigator"}),
    ("POST", "/v1/embed", {"files": {"image": png()}, "data": {"secret": "0" * 16}}, {"operator"}),
    ("POST", "/v1/keys", {"json": {"principal": "user-1"}}, {"operator"}),
    ("DELETE", "/v1/keys/0000000000000000", {}, {"operator"}),
    ("GET", "/v1/audit", {}, {"auditor", "operator", "investigator"}),
]


@pytest.mark.parametrize(("method", "path", "options", "roles"), ROUTES)
def test_every_route_wants_a_live_token_of_the_right_role(
    client, service, headers, method, path, options, roles
):
    assert client.request(method, path, **options).status_code == 401
    wrong = {"Authorization": "Bearer dmk_wrong"}
    assert client.request(method, path, headers=wrong, **options).status_code == 401
    expired = headers("operator", days=1e-9)
    time.sleep(0.01)
    assert client.request(method, path, headers=expired, **options).status_code == 401
    token, text = grant_token(service.registry, "gone", "operator")
    service.tokens.revoke(token.id)
    revoked = {"Authorization": f"Bearer {text}"}
    assert client.request(method, path, headers=revoked, **options).status_code == 401
    for role in ("operator", "auditor", "investigator"):
        status = client.request(method, path, headers=headers(role), **options).status_code
        assert (status == 403) == (role not in roles), (role, status)


def test_state_needs_no_token(client, service):
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/ready").json()["status"] == "ready"
    assert b"diffmark_requests_total" in client.get("/metrics").content
    service.registry.store.engine.dispose()
    service.reading.close()
    assert client.get("/ready").status_code == 503
    service.reading = Reading(service.detector, 8)


def test_patterns_are_derived_before_the_first_request():
    reading = Reading(PixelDetector(PixelCodec(b"\x51" * 32)), 8)
    band = reading.pixel.codec.layout.bands[0]
    assert "owner" not in vars(band)
    reading.warm_up()
    assert "owner" in vars(band)
    reading.close()


def test_detect(client, headers, detector):
    answers = client.post("/v1/detect", headers=headers(), files=files(png(1), png(2))).json()
    assert [answer["source"] for answer in answers] == ["0.png", "1.png"]
    assert answers[0]["secret"] == detector.detect(png(1)).secret
    assert answers[0]["verdict"] == "undecided"
    secret = answers[0]["secret"]
    (answer,) = client.post(
        "/v1/detect", headers=headers(), files=files(png(1)), data={"secret": secret}
    ).json()
    assert (answer["verdict"], answer["matches"]) == ("marked", 64)


def test_identify_names_the_account_and_leaves_a_trace(client, headers, service, detector):
    key = int(detector.detect(png(5)).secret, 16)
    keys = np.array([key, key ^ (2**64 - 1), key ^ 0xFFFF], np.uint64)
    service.registry.import_keys(keys, ["user-42", "user-43", "user-42"])
    (answer,) = client.post(
        "/v1/identify", headers=headers(name="ann"), files=files(png(5)), data={"reason": "case 7"}
    ).json()
    assert answer["principal"] == "user-42"
    assert [one["key"] for one in answer["candidates"]] == [
        f"{key:016x}",
        None,
        None,
    ]  # secrets of others stay secret, and so does another one of the same account
    assert [one["principal"] for one in answer["candidates"]] == ["user-42", "user-42", "user-43"]
    assert answer["candidates"][0]["distance"] == 0
    assert answer["readers"] == [detector.name]
    (answer,) = client.post(
        "/v1/identify", headers=headers(), files=files(png(5), png(5)), data={"together": "true"}
    ).json()
    assert answer["principal"] == "user-42"
    entries = client.get("/v1/audit", headers=headers()).json()
    assert ("ann", "identify", "case 7") in {(e["actor"], e["action"], e["reason"]) for e in entries}
    assert service.registry.verify().ok


def test_an_empty_registry_is_a_clear_answer(client, headers):
    answer = client.post("/v1/identify", headers=headers(), files=files(png()))
    assert answer.status_code == 409
    assert "holds no keys" in answer.json()["detail"]


def test_keys_are_issued_and_revoked(client, headers, service):
    operator = headers("operator")
    answer = client.post(
        "/v1/keys", headers=operator, json={"principal": "user-9", "context": {"model": "x"}}
    )
    assert answer.status_code == 201
    key = answer.json()["key"]
    assert client.delete(f"/v1/keys/{key}", headers=operator).status_code == 204
    assert client.delete(f"/v1/keys/{key}", headers=operator).status_code == 409
    assert client.delete("/v1/keys/xyz", headers=operator).status_code == 422
    for wrong in ("", "\n", "x" * 300, "ann@example.org"):
        assert client.post("/v1/keys", headers=operator, json={"principal": wrong}).status_code == 422
    assert service.registry.list_keys(principal="user-9")[0].status == "revoked"


def test_embed_gives_a_marked_png(client, headers):
    answer = client.post(
        "/v1/embed", headers=headers("operator"), files={"image": png(1, (90, 70))}, data={"secret": "f" * 16}
    )
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as image:
        assert image.size == (90, 70)


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"not an image", 422), (png()[:200], 422), (png(0, (600, 500)), 413), (png(0, (1, 1)), 200)],
)
def test_bad_uploads(client, headers, content, status):
    assert client.post("/v1/detect", headers=headers(), files=files(content)).status_code == status


def test_bad_requests(client, headers):
    many = client.post("/v1/detect", headers=headers(), files=files(*[png()] * 4))
    assert (many.status_code, "at most 3 images" in many.json()["detail"]) == (413, True)
    assert client.post("/v1/detect", headers=headers()).status_code == 422
    flat = io.BytesIO()
    Image.new("1", (1000, 1000)).save(flat, "PNG")
    big = client.post("/v1/detect", headers=headers(), files=files(flat.getvalue()))
    assert (big.status_code, "limit of 200,000 pixels" in big.json()["detail"]) == (422, True)
    wrong = client.post("/v1/detect", headers=headers(), files=files(png()), data={"secret": "12"})
    assert (wrong.status_code, "16 hex digits" in wrong.json()["detail"]) == (422, True)
    assert client.get("/v1/audit?last=0", headers=headers()).status_code == 422


def test_rate_limit(tmp_path, detector):
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
    service = Service(detector, registry, Limits(per_minute=1, burst=2))
    _, text = grant_token(registry, "ann", "auditor")
    with TestClient(create_app(service)) as client:
        headers = {"Authorization": f"Bearer {text}"}
        answers = [client.get("/v1/audit", headers=headers) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[2].headers["retry-after"]) > 1


def test_the_bucket_refills():
    limiter = RateLimiter(Limits(per_minute=60, burst=2))
    assert [limiter.wait(1, now=0.0) for _ in range(3)] == [0, 0, 1.0]
    assert limiter.wait(2, now=0.0) == 0
    assert limiter.wait(1, now=1.0) == 0
    assert limiter.wait(1, now=1.5) == pytest.approx(0.5)


def test_requests_are_decoded_together_and_an_overload_says_so(detector, monkeypatch):
    sizes, gate = [], threading.Event()
    real = detector.logits_by_key

    def slow(pixels):
        gate.wait(5)
        sizes.append(len(pixels))
        return real(pixels)

    monkeypatch.setattr(detector, "logits_by_key", slow)
    batcher = Batcher(detector, capacity=6, wait=0.05)
    picture = read_image(png(3)).resized((64, 64))
    first = batcher.submit(picture)
    time.sleep(0.2)  # the thread now waits at the gate with the first image
    futures = [batcher.submit(picture) for _ in range(6)]
    with pytest.raises(OverloadError, match="6 images are waiting"):
        batcher.submit(picture)
    gate.set()
    rows = [future.result(5) for future in [first, *futures]]
    assert sizes == [1, 6]
    assert all(np.allclose(row, rows[0], atol=1e-5) for row in rows)
    batcher.close()


def test_an_overload_answers_503(service, headers, monkeypatch):
    def full(picture):
        raise OverloadError("full")

    monkeypatch.setattr(service.reading.batcher, "submit", full)
    with TestClient(create_app(service)) as client:
        answer = client.post("/v1/detect", headers=headers(), files=files(png()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


def test_a_failure_of_the_decoder_reaches_the_caller_and_the_thread_lives_on(detector, monkeypatch):
    batcher = Batcher(detector)
    picture = read_image(png()).resized((64, 64))
    with monkeypatch.context() as patch:
        patch.setattr(detector, "logits_by_key", lambda pixels: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batcher.submit(picture).result(5)
    assert batcher.submit(picture).result(5).shape == (1, 64, 2)  # keys, bits
    batcher.close()


def test_a_request_that_takes_too_long(tmp_path, detector, monkeypatch):
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
    service = Service(detector, registry, Limits(seconds=0.05))
    _, text = grant_token(registry, "ann", "auditor")
    real = detector.logits_by_key
    monkeypatch.setattr(detector, "logits_by_key", lambda pixels: time.sleep(0.4) or real(pixels))
    with TestClient(create_app(service)) as client:
        answer = client.post("/v1/detect", headers={"Authorization": f"Bearer {text}"}, files=files(png()))
    assert answer.status_code == 504


def test_logs_hold_no_contents(client, headers, caplog):
    with caplog.at_level(logging.INFO, logger="diffmark.server"):
        answer = client.post(
            "/v1/detect",
            headers={**headers(), "X-Request-Id": "my-id"},
            files=files(png()),
            data={"secret": "ab" * 8},
        )
    assert answer.headers["x-request-id"] == "my-id"
    line = json.loads(caplog.records[-1].message)
    assert (line["id"], line["route"], line["status"]) == ("my-id", "/v1/detect", 200)
    assert "ab" * 8 not in caplog.text
    assert "dmk_" not in caplog.text


def test_tokens_are_kept_as_digests(service, tmp_path):
    _, text = grant_token(service.registry, "ann", "auditor")
    assert text.encode() not in (tmp_path / "registry.db").read_bytes()
    tokens = Tokens(service.registry.store.engine)
    assert tokens.find(text).name == "ann"
    for bad in (
        lambda: tokens.create("x", "king"),
        lambda: tokens.create("", "auditor"),
        lambda: tokens.revoke(99),
    ):
        with pytest.raises(ValueError, match=r"role|name|no live token"):
            bad()
    service.close()


def test_token_commands(tmp_path, monkeypatch, capsys):
    import sys

    from diffmark import cli

    url = f"sqlite:///{tmp_path / 'registry.db'}"

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["diffmark", "token", *map(str, arguments), "--registry", url])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, capsys.readouterr().out

    code, text = run("create", "ann", "--role", "auditor")
    assert (code, text.startswith("dmk_")) == (0, True)
    assert [json.loads(line)["status"] for line in run("list", "--json")[1].splitlines()] == ["live"]
    assert run("revoke", 1)[0] == 0
    assert "revoked" in run("list")[1]
    assert run("revoke", 1)[0] == 2
    assert run("create", "ann", "--role", "king")[0] == 2
