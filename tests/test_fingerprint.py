"""Fingerprints: pictures found again by likeness, exactly, and named as the weaker basis."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image, ImageOps
from pixel_vectors import scene
from typer.testing import CliRunner

import diffmark
from diffmark.cli import app
from diffmark.detection.joint import open_detector
from diffmark.fingerprint import THRESHOLD, fingerprint, fingerprints
from diffmark.registry import NotPermitted, Registry, RegistryError
from diffmark.registry.fingerprints import Fingerprints, nearest
from diffmark.registry.operator_key import registry_ring
from diffmark.server.app import create_app
from diffmark.server.public import Public
from diffmark.server.service import Service
from diffmark.server.tokens import Token

RESULT = Path(__file__).parents[1] / "results" / "fingerprint.json"


@pytest.fixture
def registry(tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        yield registry


def brute_force(words, views):
    bits = np.unpackbits(np.ascontiguousarray(words[None] ^ views[:, None]).view(np.uint8), axis=-1).sum(
        axis=-1
    )
    return int(bits.min())


def test_the_search_finds_exactly_what_comparing_all_finds():
    rng = np.random.default_rng(1)
    words = np.asfortranarray(rng.integers(0, 2**64, (5000, 4), np.uint64))
    keys = np.arange(5000) + 1
    for flips in (0, 5, THRESHOLD - 1, THRESHOLD):
        place = int(rng.integers(5000))
        mask = np.zeros(256, np.uint8)
        mask[rng.choice(256, flips, replace=False)] = 1
        view = words[place] ^ np.packbits(mask).view(">u8").astype(np.uint64)
        views = np.concatenate([rng.integers(0, 2**64, (7, 4), np.uint64), view[None]])
        assert nearest(words, keys, views) == (flips, place + 1) == (brute_force(words, views), place + 1)
    assert nearest(words, keys, rng.integers(0, 2**64, (8, 4), np.uint64))[0] == 257


def test_many_that_are_alike_in_one_word_hide_none():
    rng = np.random.default_rng(2)
    words = rng.integers(0, 2**64, (2000, 4), np.uint64)
    words[:, 0] = 7
    view = words[1234].copy()
    view[1] ^= np.uint64(1)
    assert nearest(words, np.arange(2000), view[None]) == (1, 1234)


def test_a_picture_is_found_after_what_is_done_to_pictures_and_another_is_not(registry):
    key = registry.issue("user-42")
    kept = Fingerprints(registry)
    image = scene(1, (512, 384))
    kept.log(image, key.hex)
    assert len(kept) == 1
    turned = image.transpose(Image.Transpose.ROTATE_90)
    for seen in (image, image.resize((256, 192)), ImageOps.mirror(image), turned):
        match = kept.find(seen)
        assert match is not None
        assert (match.principal, match.algorithm) == ("user-42", "pdq")
        assert kept.known(seen)
    assert kept.find(scene(2, (512, 384))) is None
    assert [entry.action for entry in registry.log(20)].count(
        "identify"
    ) == 5  # each with a name, none of known()
    other = Fingerprints(registry)  # another process
    kept.log(scene(3, (512, 384)), key.hex)
    assert other.known(scene(3, (512, 384)))


def test_who_may_and_what_is_refused(registry, tmp_path):
    key = registry.issue("user-42")
    with pytest.raises(RegistryError, match="not a key"):
        Fingerprints(registry).log(scene(1, (128, 128)), "0" * 16)
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="stranger") as theirs:
        with pytest.raises(NotPermitted):
            Fingerprints(theirs).log(scene(1, (128, 128)), key.hex)
        with pytest.raises(NotPermitted):
            Fingerprints(theirs).find(scene(1, (128, 128)))


def test_the_fingerprint_is_that_of_the_package_and_stable():
    image = scene(1, (512, 384))
    views = fingerprints(image)
    assert views.shape == (8, 4)
    assert (views[0] == fingerprint(image)).all()
    assert len({tuple(view) for view in views.tolist()}) == 8


def test_on_the_command_line(registry, tmp_path):
    key = registry.issue("user-42")
    scene(1, (400, 300)).save(tmp_path / "a.png")
    scene(2, (400, 300)).save(tmp_path / "b.png")
    url = ["--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root"]
    run = CliRunner().invoke
    done = run(app, ["fingerprint", "log", str(tmp_path / "a.png"), "--secret", key.hex, *url])
    assert done.exit_code == 0, done.output
    done = run(app, ["fingerprint", "find", str(tmp_path / "a.png"), str(tmp_path / "b.png"), "--json", *url])
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert (done.exit_code, [row["principal"] for row in rows]) == (1, ["user-42", None])
    assert rows[0]["basis"] == "fingerprint"


def test_marked_images_are_kept_and_found_when_their_mark_is_gone(tmp_path):
    url = ["--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root"]
    run = CliRunner().invoke
    scene(1, (400, 300)).save(tmp_path / "a.png")
    command = ["embed", str(tmp_path / "a.png"), "--out", str(tmp_path / "b.png"), "--fingerprints", "--json"]
    done = run(app, [*command, *url])
    assert done.exit_code == 2
    assert "give --secret or --principal" in done.output
    done = run(app, [*command, "--principal", "user-42", *url])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["fingerprint"] == "pdq"
    # The plain picture has the likeness and not the mark; the other has neither.
    scene(2, (400, 300)).save(tmp_path / "c.png")
    asked = [str(tmp_path / name) for name in ("a.png", "b.png", "c.png")]
    done = run(app, ["identify", *asked, "--codec", "pixel", "--fingerprints", "--json", *url])
    first, marked, other = (json.loads(line) for line in done.stdout.splitlines())
    assert done.exit_code == 1
    assert {row["reader"] for row in (first, marked, other)} == {"pixel"}
    assert first["verdict"]["principal"] is None
    assert (first["fingerprint"]["basis"], first["fingerprint"]["principal"]) == ("fingerprint", "user-42")
    assert marked["verdict"]["principal"] == "user-42"
    assert "fingerprint" not in marked
    assert other["fingerprint"]["principal"] is None
    done = run(app, ["identify", asked[0], "--codec", "pixel", "--fingerprints", *url])
    assert "looks like one of user-42" in done.stdout
    assert "the weaker basis" in done.stdout


def test_a_mark_that_was_copied_to_another_picture_is_told(tmp_path):
    url = ["--registry", f"sqlite:///{tmp_path / 'registry.db'}", "--actor", "root"]
    run = CliRunner().invoke
    scene(1, (400, 300)).save(tmp_path / "a.png")
    scene(2, (400, 300)).save(tmp_path / "other.png")
    marked, forged = tmp_path / "marked.png", tmp_path / "forged.png"
    command = ["embed", str(tmp_path / "a.png"), "--out", str(marked), "--fingerprints", "--json", *url]
    done = run(app, [*command, "--principal", "user-42"])
    assert done.exit_code == 0, done.output
    secret = json.loads(done.stdout)["secret"]
    with Registry.open(url[1], actor="root") as registry:
        codec = registry_ring(registry)
        diffmark.embed(tmp_path / "other.png", secret, codec).image.save(forged)  # as good as a forger can be
        kept = Fingerprints(registry)
        assert kept.distance(marked, secret) <= 2
        assert kept.distance(ImageOps.mirror(Image.open(marked)), secret) <= THRESHOLD
        assert kept.distance(forged, secret) > 2 * THRESHOLD
        assert kept.distance(forged, "0" * 16) is None
        assert kept.distance(forged, registry.issue("user-43").hex) is None  # of which no picture was logged
        service = Service(open_detector("pixel", key=codec), registry, fingerprints=kept)
        token = Token(1, "root", "auditor", 0, 2**40, None)
        notes = [service.examine(("x", p.read_bytes()), token, "", 1).found.notes for p in (marked, forged)]
        service.close()
    assert "looks like the one that this key was written into" in notes[0][-1]
    assert "a mark copied to another picture" in notes[1][-1]
    asked = ["identify", str(marked), str(forged), "--codec", "pixel", *url]
    done = run(app, [*asked, "--fingerprints", "--json"])
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["verdict"]["principal"] == second["verdict"]["principal"] == "user-42"
    assert first["bits_from_its_picture"] <= 2 < 2 * THRESHOLD < second["bits_from_its_picture"]
    assert "a mark copied to another picture" in run(app, [*asked, "--fingerprints"]).stdout
    assert "this key was written into" not in run(app, asked).stdout


def test_the_public_verifier_names_it_the_weaker_basis(registry, tmp_path):
    key = registry.issue("user-42")
    kept = Fingerprints(registry)
    image = scene(1, (400, 300))  # its mark is gone
    kept.log(image, key.hex)
    service = Service(open_detector("pixel"), registry, fingerprints=kept)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    with TestClient(create_app(service, Public(service, tmp_path / "f"))) as client:
        answer = client.post("/public/verify", files={"image": ("a.png", buffer.getvalue())}).json()
    assert answer["verdict"] == "similar"
    assert "weakest" in answer["sentences"][0]
    assert "user-42" not in json.dumps(answer)
    service.close()


def test_the_threshold_is_the_one_that_was_chosen_on_the_tune_part():
    document = json.loads(RESULT.read_text())
    chosen = document["chosen"]
    assert (chosen["method"], chosen["threshold"]) == ("pdq", THRESHOLD)
    assert chosen["views"] == max(choice["views"] for choice in document["choices"])
    assert chosen["recall"] == max(choice["recall"] for choice in document["choices"])
