"""Operator keys: rings, where they come from, rotation, and what somebody with another key reads."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import diffmark
from diffmark.cli import app
from diffmark.detection.joint import open_detector
from diffmark.keys.bits import KeyedBits
from diffmark.keys.ring import PUBLIC_RING, KeyRing, as_ring, find_ring, new_ring, parse, ring_path, rotate
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.registry import Registry
from diffmark.registry.errors import RegistryError
from diffmark.registry.operator_key import registry_ring
from diffmark.secret import random_secrets

FIRST, SECOND = OperatorKey(bytes(range(32))), OperatorKey(bytes(range(1, 33)))


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def picture(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(3)
    coarse = rng.integers(40, 216, (12, 12, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC)
    noisy = np.asarray(image, float) + rng.normal(0, 6, (256, 256, 3))
    path = tmp_path / "picture.png"
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)
    return path


def test_without_a_ring_the_public_key_is_used_and_said():
    assert find_ring() is PUBLIC_RING
    assert "for trying out" in run("key", "show").output


def test_new_show_rotate_and_list_never_print_a_key():
    made = run("key", "new")
    place = ring_path()
    assert place.stat().st_mode & 0o777 == 0o600
    first = find_ring()
    assert not first.is_public
    said = made.output + made.stderr
    for command in ("show", "list", "rotate", "show", "list"):
        done = run("key", command)
        said += done.output + done.stderr
    digits = [line.split()[0] for line in place.read_text().splitlines()]
    assert len(digits) == 2
    assert not any(one in said for one in digits)
    assert find_ring().older == first.keys
    assert place.stat().st_mode & 0o777 == 0o600
    rows = [json.loads(line) for line in run("key", "list", "--json").output.splitlines()]
    assert [row["use"] for row in rows] == ["writes and reads", "reads"]
    assert run("key", "new", code=1).exception.args[0].endswith("`diffmark key rotate` adds one")


def test_a_ring_comes_from_the_environment_a_file_or_a_command(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    new_ring(file)
    digits = file.read_text().split()[0]
    monkeypatch.setenv("DIFFMARK_KEY", digits)
    by_value = find_ring()
    monkeypatch.setenv("DIFFMARK_KEY_FILE", str(file))
    with pytest.raises(ValueError, match="both set"):
        find_ring()
    monkeypatch.delenv("DIFFMARK_KEY")
    by_file = find_ring()
    monkeypatch.delenv("DIFFMARK_KEY_FILE")
    monkeypatch.setenv("DIFFMARK_KEY_COMMAND", f"{sys.executable} -c \"print(open('{file}').read())\"")
    by_command = find_ring()
    assert by_value.ids == by_file.ids == by_command.ids
    with pytest.raises(ValueError, match="ended with 3") as caught:
        as_ring(f"command:{sys.executable} -c \"import sys; print('{digits}'); sys.exit(3)\"")
    assert digits not in str(caught.value)
    assert as_ring("public") is PUBLIC_RING


def test_a_file_that_others_can_read_is_refused(tmp_path):
    file = tmp_path / "keys"
    new_ring(file)
    for mode in (0o640, 0o604, 0o644, 0o660):
        os.chmod(file, mode)
        with pytest.raises(PermissionError, match="chmod 600"):
            as_ring(file)


@pytest.mark.parametrize(
    "text", ["", "# nothing", "00" * 31, "zz" * 32, f"{'00' * 32} yesterday", "00" * 32 + " a b"]
)
def test_a_ring_that_is_wrong_is_refused_without_showing_it(text):
    with pytest.raises(ValueError, match="operator key|day") as caught:
        parse(text, "ring")
    assert "zz" * 8 not in str(caught.value)
    assert "00" * 8 not in str(caught.value)


@pytest.mark.parametrize("digits", [32, 62, 63, 65, 128])
def test_a_key_of_the_wrong_length_is_refused_without_showing_it(picture, digits):
    for call in (diffmark.detect, diffmark.embed):
        with pytest.raises(ValueError, match=f"64 hex digits; got {digits}") as caught:
            call(picture, "0123456789abcdef", key=("ab" * 64)[:digits])
        assert "abab" not in str(caught.value)
    with pytest.raises(ValueError, match="32 bytes, got 16"):
        diffmark.detect(picture, key=bytes(16))
    with pytest.raises(TypeError, match="bytes, hex digits or a file, got int"):
        diffmark.detect(picture, key=5)


def test_the_same_key_twice_and_too_many_keys_are_refused():
    with pytest.raises(ValueError, match="twice"):
        KeyRing((FIRST, FIRST), "here")
    with pytest.raises(ValueError, match="at most 16"):
        KeyRing(tuple(OperatorKey(bytes([i] * 32)) for i in range(17)), "here")


def test_pixel_marks_are_read_after_a_rotation_and_the_tries_are_counted(picture, tmp_path):
    file = tmp_path / "ring"
    old = new_ring(file)
    secret = random_secrets(1)[0]
    marked = diffmark.embed(picture, secret, old).image
    ring = rotate(file)
    found = open_detector("pixel", key=ring).detect(marked, secret)
    assert (found.marked, found.key_id, found.tries) == (True, old.current.id, 2)
    alone = open_detector("pixel", key=old).detect(marked, secret)
    assert alone.tries == 1
    assert found.p_value == pytest.approx(2 * alone.p_value)


def test_another_key_reads_chance(picture):
    secret = random_secrets(1)[0]
    marked = diffmark.embed(picture, secret, FIRST).image
    assert diffmark.detect(marked, secret, FIRST).marked
    for other in (SECOND, PUBLIC_KEY):
        found = diffmark.detect(marked, secret, other)
        assert not found.marked
        assert found.matches < 45


def test_keyed_bits_invert_and_differ_between_keys():
    secrets = random_secrets(50)
    first, second = KeyedBits(FIRST, 64), KeyedBits(SECOND, 64)
    carried = first.write(secrets)
    logits = np.stack([-(2.0 * carried - 1), 2.0 * carried - 1], axis=-1)
    read = first.read(logits)
    assert ((read[..., 1] > read[..., 0]) == secrets).all()
    assert np.array_equal(first.carried(read), logits)
    other = second.read(logits)
    assert abs(((other[..., 1] > other[..., 0]) == secrets).mean() - 0.5) < 0.05
    assert np.array_equal(KeyedBits(PUBLIC_KEY, 64).write(secrets), secrets)


def test_a_registry_has_its_own_key_from_its_first_start(tmp_path, picture, monkeypatch):
    monkeypatch.setenv("DIFFMARK_REGISTRY", f"sqlite:///{tmp_path / 'registry.db'}")
    assert not ring_path().exists()
    assert "operator key" in run("registry", "init").output
    ring = find_ring()
    assert not ring.is_public
    run("embed", picture, "--out", tmp_path / "marked.png", "--principal", "user-1")
    run("identify", tmp_path / "marked.png", "--codec", "pixel")
    plain = run("detect", tmp_path / "marked.png", "--codec", "pixel", "--json")
    assert json.loads(plain.stdout)["key_id"] == ring.current.id  # `detect` reads with the same ring
    run("key", "rotate")
    run("identify", tmp_path / "marked.png", "--codec", "pixel")
    run("detect", tmp_path / "marked.png", "--codec", "pixel", "--key", "public", code=1)


def test_a_registry_refuses_keys_that_are_not_its_own(tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        assert registry_ring(registry, FIRST).current == FIRST
        with pytest.raises(RegistryError, match=FIRST.id):
            registry_ring(registry, SECOND)
        with pytest.raises(RegistryError, match=FIRST.id):
            registry_ring(registry)
        assert registry_ring(registry, KeyRing((SECOND, FIRST), "here")).current == SECOND
        assert registry.log(1)[0].action == "set operator key"


def test_a_registry_of_before_goes_on_reading_public_marks(tmp_path):
    with Registry.open(f"sqlite:///{tmp_path / 'registry.db'}", actor="root") as registry:
        registry.issue("user-1")
        ring = registry_ring(registry)
    assert not ring.is_public
    assert ring.older == (PUBLIC_KEY,)


def test_a_key_with_digits_too_few_is_refused_without_showing_it():
    for cut in ("ab" * 31, "cd" * 33):
        with pytest.raises(ValueError, match="neither a file nor a key") as error:
            diffmark.PixelCodec(cut)
        assert cut not in str(error.value)
