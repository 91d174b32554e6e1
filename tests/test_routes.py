"""Every route of the service, as it describes itself: without a token, or with a wrong one, none answers."""

from __future__ import annotations

import time

import pytest
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient

from diffmark.detection.latent import Detector
from diffmark.registry import Registry
from diffmark.registry.access import ROLES
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

ANYONE = set(ROLES)
ALLOWED = {  # (method, path): roles; a route that is not here fails the test
    ("POST", "/v1/detect"): {"auditor", "operator"},
    ("POST", "/v1/identify"): {"auditor"},
    ("POST", "/v1/examine"): {"auditor", "operator"},
    ("POST", "/v1/embed"): {"operator"},
    ("POST", "/v1/generate"): {"operator"},
    ("POST", "/v1/keys"): {"operator"},
    ("DELETE", "/v1/keys/{key}"): {"operator"},
    ("GET", "/v1/audit"): ANYONE,
    ("GET", "/v1/me"): ANYONE,
    ("GET", "/v1/matches/byBinding"): ANYONE,
    ("POST", "/v1/matches/byBinding"): ANYONE,
    ("POST", "/v1/matches/byContent"): {"auditor"},
    ("GET", "/v1/manifests/{manifestId}"): ANYONE,
}
OPEN = {("GET", path) for path in ("/health", "/ready", "/metrics", "/v1/services/supportedAlgorithms")}
VALUES = {"{key}": "0" * 16, "{manifestId}": "urn:c2pa:00000000-0000-0000-0000-000000000000"}


LIMITS = Limits(
    per_minute=1e6, burst=100_000, address_per_minute=1e6, address_burst=100_000, upload_bytes=100_000
)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    place = tmp_path_factory.mktemp("registry") / "registry.db"
    registry = Registry.open(f"sqlite:///{place}", actor="root")
    detector = Detector(tiny_codec(), _build("sd").pipe.vae)
    return Service(detector, registry, LIMITS)


@pytest.fixture(scope="module")
def client(service):
    with TestClient(create_app(service), raise_server_exceptions=False) as client:
        yield client


def described(client):
    """(method, path) of all that the OpenAPI description names."""
    paths = client.get("/openapi.json").json()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


def hidden(client):
    """Paths outside the description: only the page and FastAPI's own."""
    return {path for route in client.app.routes if (path := getattr(route, "path", ""))} - {
        path for _, path in described(client)
    }


def ask(client, method, path, text):
    for name, value in VALUES.items():
        path = path.replace(name, value)
    headers = {} if text is None else {"Authorization": text}
    return client.request(method, path, headers=headers)


def test_no_route_was_forgotten(client):
    assert described(client) - OPEN <= set(ALLOWED)
    assert described(client) >= OPEN
    assert not [path for path in hidden(client) if path.startswith("/v1")]


def test_what_is_open_answers_without_a_token(client):
    for method, path in OPEN:
        assert client.request(method, path).status_code == 200


def test_no_other_route_answers_without_a_live_token(client, service):
    expired = grant_token(service.registry, "late", "auditor", 1e-9)[1]
    ended, revoked = grant_token(service.registry, "gone", "auditor")
    service.tokens.revoke(ended.id)
    live = grant_token(service.registry, "ann", "auditor")[1]
    time.sleep(0.01)
    wrong = [None, "", "Bearer", "Bearer ", "Bearer dmk_wrong", f"Bearer {expired}", f"Bearer {revoked}"]
    wrong += [live, f"Basic {live}", f"Bearer {live[:-1]}"]
    for method, path in described(client) - OPEN:
        for text in wrong:
            answer = ask(client, method, path, text)
            assert answer.status_code == 401, (method, path, answer.status_code)
            assert answer.headers["www-authenticate"] == "Bearer"


def test_each_route_serves_its_roles_only(client, service):
    tokens = {role: f"Bearer {grant_token(service.registry, f'a-{role}', role)[1]}" for role in ROLES}
    for method, path in described(client) - OPEN:
        for role, text in tokens.items():
            status = ask(client, method, path, text).status_code
            assert status < 500
            assert (status == 403) == (role not in ALLOWED[method, path]), (method, path, role, status)


def test_a_body_without_a_length_is_refused(client, service):
    text = grant_token(service.registry, "bob", "auditor")[1]

    def endless():
        yield b"x" * 10

    headers = {"Authorization": f"Bearer {text}", "Content-Type": "image/png"}
    answer = client.post("/v1/matches/byContent", content=endless(), headers=headers)
    assert (answer.status_code, "Content-Length" in answer.json()["detail"]) == (411, True)
