"""The service as an oracle: what it tells whom, how often, and that it does not change its mind."""

from __future__ import annotations

import io

import numpy as np
import pytest
from conftest import _build, tiny_codec
from fastapi.testclient import TestClient
from PIL import Image

from diffmark.detection.latent import Detector
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.models import Found
from diffmark.server.oracle import Answers, coarse
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token


def png(seed):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def made(tmp_path):
    """A service, a client, and the headers of an auditor and an operator."""
    registry = Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root")
    registry.issue("user-1")
    limits = Limits(per_minute=1e9, burst=10**9, pictures_a_day=5, address_per_minute=1, address_burst=40)
    service = Service(Detector(tiny_codec(), _build("sd").pipe.vae), registry, limits)
    tokens = {role: grant_token(registry, role, role)[1] for role in ("auditor", "operator")}
    headers = {role: {"Authorization": f"Bearer {token}"} for role, token in tokens.items()}
    with TestClient(create_app(service)) as client:
        yield service, client, headers


def ask(client, headers, data, secret=None):
    return client.post(
        "/v1/detect",
        headers=headers,
        files={"images": ("a.png", data)},
        data={"secret": secret} if secret else {},
    )


def test_exact_figures_are_for_auditors(made):
    _, client, headers = made
    (full,) = ask(client, headers["auditor"], png(1), "00" * 8).json()
    (shown,) = ask(client, headers["operator"], png(1), "00" * 8).json()
    assert full["matches"] is not None
    assert len(full["secret"]) == 16
    assert (shown["matches"], shown["threshold"], shown["secret"]) == (None, None, "")
    assert shown["verdict"] == full["verdict"]
    assert np.log10(shown["p_value"]) == pytest.approx(round(np.log10(shown["p_value"])))
    assert shown["p_value"] >= full["p_value"]
    for role, given in (("auditor", True), ("operator", False)):
        answer = client.post("/v1/examine", headers=headers[role], files={"image": ("a.png", png(2))}).json()
        assert (answer["margins"] is not None) == given
        assert (answer["found"]["secret"] != "") == given


def test_the_same_file_gets_the_same_answer_without_being_read_again(made, monkeypatch):
    service, client, headers = made
    first = ask(client, headers["auditor"], png(3)).json()
    monkeypatch.setattr(service.reading, "read", lambda *_: pytest.fail("it was read again"))
    assert ask(client, headers["auditor"], png(3)).json() == first


def test_a_token_has_a_budget_of_pictures(made):
    _, client, headers = made
    statuses = [ask(client, headers["auditor"], png(4)).status_code for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    assert ask(client, headers["operator"], png(4)).status_code == 200  # another token has its own


def test_a_network_has_a_rate_whatever_its_tokens(made):
    _, client, headers = made
    statuses = [client.get("/v1/me", headers=headers[r]).status_code for r in ("auditor", "operator") * 21]
    assert statuses[:40] == [200] * 40
    assert statuses[40:] == [429, 429]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("p_value", [None, 1.0, 0.4, 1e-3, 0.0, 3e-19])
def test_coarse_p_values_are_never_too_small(p_value):
    found = Found(
        source="a", verdict="not marked", explanation="x", test="secret", p_value=p_value, fpr=1e-3, secret="ab",
        matches=3, threshold=4, reader="pixel", tries=1, key_id=None, notes=[],
    )  # fmt: skip
    shown = coarse(found).p_value
    assert shown is None if p_value is None else shown >= p_value


def test_only_so_many_answers_are_kept():
    answers = Answers(kept=2)
    names = [Answers.name(bytes([i]), b"") for i in range(3)]
    for name in names:
        answers.put(name, object())  # type: ignore[arg-type]
    assert answers.get(names[0]) is None
    assert answers.get(names[2]) is not None
    assert Answers.name(b"a", b"") != Answers.name(b"a", b"b")
