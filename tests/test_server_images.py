"""Examining and generating over HTTP, and the page's files."""

from __future__ import annotations

import io
import threading
import time

import numpy as np
import pytest
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient
from PIL import Image
from test_server import GENEROUS, client, detector, headers, png, service  # noqa: F401  # fixtures

from diffmark.detection.latent import Detector
from diffmark.latent.vae import FamilyError
from diffmark.mark.generation import ImageSpec, Sampling, generate
from diffmark.registry import Registry
from diffmark.secret import from_hex
from diffmark.server.app import create_app
from diffmark.server.batching import OverloadError
from diffmark.server.lane import Lane
from diffmark.server.limits import Limits
from diffmark.server.painting import Painter
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

ORDER = {"principal": "user-7", "prompt": "a hill", "negative_prompt": "fog", "seed": 5, "steps": 3}


def test_examine_tells_an_auditor_everything(client, headers, service, detector):  # noqa: F811
    picture = png(5, (90, 70))
    key = detector.detect(picture).secret
    service.registry.import_keys(np.array([int(key, 16)], np.uint64), ["user-42"])
    answer = client.post(
        "/v1/examine", headers=headers(), files={"image": ("a.png", picture)}, data={"reason": "case 9"}
    ).json()
    assert answer["answer"]["principal"] == "user-42"
    assert answer["found"]["verdict"] == "marked"  # one verdict, whatever the blind one was
    assert answer["found"]["source"] == "a.png"
    assert (answer["width"], answer["height"]) == (90, 70)
    assert [margin > 0 for margin in answer["margins"]] == [bool(bit) for bit in from_hex(key, 64)]
    assert (answer["evidence"]["secret"], np.shape(answer["evidence"]["scores"])) == (key, (4, 4))
    assert "case 9" in {entry.reason for entry in service.registry.log()}
    answer = client.post("/v1/examine", headers=headers("operator"), files={"image": picture}).json()
    assert (answer["answer"], answer["evidence"]) == (None, None)
    bad = client.post("/v1/examine", headers=headers(), files={"image": ("b.png", b"no image")})
    assert (bad.status_code, bad.json()["detail"][:6]) == (422, "b.png:")


def test_me_says_what_a_token_is_good_for(client, headers):  # noqa: F811
    found = client.get("/v1/me", headers=headers("operator", name="olga")).json()
    assert (found["name"], found["role"], found["image_size"]) == ("olga", "operator", [64, 64])
    assert (found["upload_bytes"], found["model"]) == (GENEROUS.upload_bytes, None)


@pytest.fixture
def generating(tmp_path, model_folder):
    """`generating(limits)`: a client of a service that can generate, an operator's headers, and the service."""
    codec = tiny_codec()
    painter = Painter.load(str(model_folder), codec)
    opened = []

    def make(limits=GENEROUS):
        registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
        made = Service(Detector(codec, painter.pipe.vae), registry, limits, painter=painter)
        _, text = grant_token(registry, "olga", "operator")
        opened.append(TestClient(create_app(made), raise_server_exceptions=False))
        return opened[-1].__enter__(), {"Authorization": f"Bearer {text}"}, made

    yield make
    for one in opened:
        one.__exit__(None, None, None)


def test_generate_gives_the_marked_image_under_a_fresh_key(generating):
    http, operator, made = generating()
    answer = http.post("/v1/generate", headers=operator, json=ORDER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    key = answer.headers["x-diffmark-key"]
    assert answer.headers["x-diffmark-seed"] == "5"
    (issued,) = made.registry.list_keys(principal="user-7")
    assert (issued.hex, issued.status) == (key, "live")
    spec = ImageSpec("a hill", from_hex(key, 64), 5, negative_prompt="fog")
    painter = made.painter
    expected = generate(painter.pipe, painter.codec, spec, Sampling(3, 7.5))
    with Image.open(io.BytesIO(answer.content)) as image:
        assert np.array_equal(np.asarray(image), np.asarray(expected))
    other = ImageSpec("a hill", from_hex(key, 64), 5, negative_prompt="sun")
    assert not np.array_equal(
        np.asarray(generate(painter.pipe, painter.codec, other, Sampling(3, 7.5))), np.asarray(expected)
    )
    free = {name: ORDER[name] for name in ("principal", "prompt", "steps")}
    seeds = [http.post("/v1/generate", headers=operator, json=free).headers["x-diffmark-seed"] for _ in "ab"]
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    "change", [{"principal": "a@example.org"}, {"steps": 1000}, {"prompt": ""}, {"seed": -1}, {"guidance": 0}]
)
def test_generate_refuses_what_will_not_do(generating, change):
    http, operator, made = generating()
    assert http.post("/v1/generate", headers=operator, json=ORDER | change).status_code == 422
    assert made.registry.list_keys() == []


def test_generate_gives_up_in_time_and_revokes_the_key(generating):
    http, operator, made = generating(Limits(painting_seconds=0.01))
    answer = http.post("/v1/generate", headers=operator, json=ORDER | {"steps": 100})
    assert (answer.status_code, answer.headers["retry-after"]) == (504, "2")
    made.painting.close()  # waits for what runs
    assert {key.status for key in made.registry.list_keys()} <= {"revoked"}


def test_a_full_lane_answers_503(generating):
    http, operator, made = generating(Limits(painting=1))
    begun, gate = threading.Event(), threading.Event()

    def block():
        begun.set()
        gate.wait(30)

    other = threading.Thread(target=made.painting.run, args=(block, 30))
    other.start()
    begun.wait(30)
    answer = http.post("/v1/generate", headers=operator, json=ORDER)
    gate.set()
    other.join()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert made.registry.list_keys() == []


def test_a_lane_drops_what_waited_too_long():
    lane, gate, ran = Lane("tests", 2), threading.Event(), []
    blocker = threading.Thread(target=lane.run, args=(lambda: gate.wait(30), 30))
    blocker.start()
    while lane._thread._work_queue.qsize():
        time.sleep(0.01)
    with pytest.raises(TimeoutError):
        lane.run(lambda: ran.append(1), 0.05)
    gate.set()
    blocker.join()
    assert lane.run(lambda: 7, 30) == 7
    assert ran == []
    with pytest.raises(ZeroDivisionError):
        lane.run(lambda: 1 / 0, 30)
    lane._places.acquire()
    lane._places.acquire()
    with pytest.raises(OverloadError, match="2 requests are in the lane for tests"):
        lane.run(lambda: 7, 30)
    lane.close()


def test_a_service_without_a_model_says_so(client, headers):  # noqa: F811
    answer = client.post("/v1/generate", headers=headers("operator"), json=ORDER)
    assert (answer.status_code, "--model" in answer.json()["detail"]) == (409, True)


def test_a_model_that_cannot_carry_the_mark_is_refused_at_the_start():
    with pytest.raises(FamilyError, match="the vae has 16"):
        Painter(_build("sd3").pipe, tiny_codec(), "sd3")


def test_the_page_and_its_files(client):  # noqa: F811
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    names = [part.split('"')[0] for part in page.text.split('"/page/')[1:]]
    assert {"style.css", "app.js", "mark.svg"} <= set(names)
    for name in names:
        assert client.get(f"/page/{name}").headers["x-content-type-options"] == "nosniff"
    for name in ("other.js", "..%2fapp.py", "index.html.bak"):
        assert client.get(f"/page/{name}").status_code == 404
    assert "http://" not in page.text + client.get("/page/style.css").text + client.get("/page/app.js").text
