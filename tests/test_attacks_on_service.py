"""The service under attack: damaged files and requests made from its own description. Nothing may end in a 5xx."""

from __future__ import annotations

import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import schemathesis
import uvicorn
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from mutations import mutated

from diffmark.detection.latent import Detector
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

LIMITS = Limits(
    per_minute=1e9,
    burst=10**9,
    address_per_minute=1e9,
    address_burst=10**9,
    upload_bytes=1_000_000,
    pixels=1_000_000,
    seconds=60,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    place = tmp_path_factory.mktemp("registry") / "registry.db"
    registry = Registry.open(f"sqlite:///{place}", actor="root")
    registry.issue("user-1")
    return Service(Detector(tiny_codec(), _build("sd").pipe.vae), registry, LIMITS)


@pytest.fixture(scope="module")
def client(service):
    with TestClient(create_app(service)) as client:  # an exception on the server fails the test
        yield client


@pytest.fixture(scope="module")
def headers(service):
    """Of a token a role."""
    return {
        role: {"Authorization": f"Bearer {grant_token(service.registry, f'a-{role}', role)[1]}"}
        for role in ("operator", "auditor", "investigator")
    }


def test_more_requests_than_there_is_room_for_are_refused_at_once(service, headers, monkeypatch):
    """One request holds the only place; the next gets 503, health answers, and afterwards there is room again."""
    gate, entered = threading.Event(), threading.Event()
    real = service.detect

    def slow(*arguments):
        entered.set()
        assert gate.wait(60)
        return real(*arguments)

    monkeypatch.setattr(service, "detect", slow)
    monkeypatch.setattr(service, "limits", replace(LIMITS, requests=1))
    (image,) = mutated(1, seed=9)
    with TestClient(create_app(service)) as client, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(service, "close", lambda: None)

        def ask():
            return client.post("/v1/detect", headers=headers["auditor"], files={"images": image})

        first = pool.submit(ask)
        assert entered.wait(60)
        second = ask()
        assert (second.status_code, second.headers["retry-after"]) == (503, "2")
        assert client.get("/health").status_code == 200
        gate.set()
        assert first.result(60).status_code in (200, 422)
        assert ask().status_code in (200, 422)


def bombard(client, headers, count, seed):
    statuses: dict[int, int] = {}
    for data in mutated(count, seed):
        answer = client.post("/v1/detect", headers=headers["auditor"], files={"images": ("a.png", data)})
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        if answer.status_code != 200:
            assert answer.json()["detail"]
    return statuses


def test_damaged_files_are_read_or_refused(client, headers):
    statuses = bombard(client, headers, 300, seed=1)
    assert set(statuses) == {200, 422}, statuses
    assert client.get("/ready").status_code == 200


@pytest.mark.slow
def test_ten_thousand_damaged_files(client, headers):
    bombard(client, headers, 300, seed=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    statuses = bombard(client, headers, 10_000, seed=3)
    assert set(statuses) == {200, 422}, statuses
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300, f"the peak grew by {grown:.0f} MB"
    assert client.get("/ready").status_code == 200


@pytest.fixture
def address(service, monkeypatch):
    """Of the service on a real port."""
    monkeypatch.setattr(service, "close", lambda: None)  # other tests go on with it
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(60)


def explore(address, headers, examples):
    """Requests made from the description, valid and not, in each role; returns the statuses of each role."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    met: set[tuple[str, int]] = set()
    for operation in schema.get_all_operations():
        for role, token in headers.items():
            probe(operation.ok(), role, token, examples, met)
    return met


def probe(operation, role, token, examples, met):
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def hit(case):
        answer = case.call(headers=token)
        met.add((role, answer.status_code))
        assert answer.status_code < 500, (case.method, case.path, answer.status_code, answer.text)

    hit()


def test_requests_made_from_the_description_meet_no_server_error(address, headers):
    met = explore(address, headers, 4)
    assert {("auditor", 403), ("operator", 422), ("auditor", 200)} <= met


@pytest.mark.slow
def test_many_requests_made_from_the_description(address, headers):
    explore(address, headers, 150)
