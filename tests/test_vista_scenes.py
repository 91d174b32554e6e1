"""The painter: same seed, same picture; captions say what is in it."""

import dataclasses
import hashlib

import numpy as np
import pytest

from diffmark.vista.looks import LOOKS
from diffmark.vista.noise import tile
from diffmark.vista.paint import paint, places_of_things
from diffmark.vista.scenes import (
    HELD_OUT,
    OBJECTS,
    PHRASES,
    Scene,
    caption,
    possible_objects,
    random_caption,
    random_scene,
    vocabulary,
)


def digest(picture: np.ndarray) -> str:
    return hashlib.sha256(picture.tobytes()).hexdigest()


def test_a_seed_is_one_picture() -> None:
    scene = random_scene(7)
    assert scene == random_scene(7)
    assert digest(paint(scene)) == digest(paint(scene))
    assert digest(paint(scene)) != digest(paint(random_scene(8)))


def test_a_picture_does_not_depend_on_those_before() -> None:
    first = digest(paint(random_scene(3)))
    paint(random_scene(4))
    assert digest(paint(random_scene(3))) == first


@pytest.mark.parametrize("size", [128, 256])
def test_shape_and_type(size: int) -> None:
    picture = paint(random_scene(1), size)
    assert picture.shape == (size, size, 3)
    assert picture.dtype == np.uint8


def test_every_seed_paints_something() -> None:
    for seed in range(HELD_OUT, HELD_OUT + 40):
        picture = paint(random_scene(seed), 128)
        assert picture.std() > 5, caption(random_scene(seed))


def test_plain_caption_names_every_attribute() -> None:
    for seed in range(200):
        scene = random_scene(seed)
        text = caption(scene)
        named = [scene.time, scene.weather, scene.terrain, scene.ground, *scene.objects]
        for name in named + ([scene.celestial] if scene.celestial != "none" else []):
            assert PHRASES[name][0] in text


def test_captions_vary_and_stay_in_the_vocabulary() -> None:
    rng = np.random.default_rng(0)
    words = set(vocabulary())
    scene = random_scene(14)
    texts = {random_caption(scene, rng) for _ in range(200)}
    assert len(texts) > 50
    for text in texts:
        assert any(phrase in text for phrase in PHRASES[scene.terrain]), text
        assert set(text.replace(",", "").split()) <= words, text


def test_nothing_is_said_that_is_not_there() -> None:
    rng = np.random.default_rng(0)
    for seed in range(100):
        scene = random_scene(seed)
        spoken = random_caption(scene, rng)
        for name in set(OBJECTS) - {*scene.objects, "tree"}:  # "pine trees" is a forest
            assert name not in spoken.split(", "), spoken


def test_night_is_darker_than_noon() -> None:
    def brightness(time: str) -> float:
        return float(paint(Scene(5, time, "clear", "hills", "lake"), 128).mean())

    assert brightness("night") < 0.4 * brightness("noon")


def test_objects_change_the_picture_only_where_they_are() -> None:
    empty = paint(Scene(5, "noon", "clear", "hills", "meadow"))
    house = paint(Scene(5, "noon", "clear", "hills", "meadow", objects=("house",)))
    changed = (empty != house).any(-1).mean()
    assert 0.01 < changed < 0.15


def test_places_of_things_are_where_they_change_the_picture() -> None:
    scene = Scene(5, "noon", "clear", "hills", "meadow", objects=("house", "birds"))
    changed = (paint(scene) != paint(dataclasses.replace(scene, objects=()))).any(-1)
    places = places_of_things(scene)
    assert not (places & ~changed).any()
    assert places.sum() > 0.7 * changed.sum()
    assert not places_of_things(Scene(5, "noon", "stormy", "hills", "meadow")).any()  # nothing there
    moon = places_of_things(Scene(5, "night", "clear", "hills", "lake", celestial="moon"))
    assert 0.001 < moon.mean() < 0.05
    assert not moon[170:].any()


def test_wrong_attributes_are_named() -> None:
    with pytest.raises(ValueError, match="time: 'teatime' is not one of dawn"):
        Scene(0, "teatime", "clear", "hills", "lake")
    with pytest.raises(ValueError, match="a boat has no place in a scene with a meadow"):
        Scene(0, "noon", "clear", "hills", "meadow", objects=("boat",))
    assert "boat" in possible_objects("lake")


@pytest.mark.parametrize("name", list(LOOKS))
def test_looks_keep_the_picture_recognisable(name: str) -> None:
    picture = paint(random_scene(501))
    changed = LOOKS[name](picture)
    assert changed.shape == picture.shape
    assert changed.dtype == np.uint8
    assert digest(changed) != digest(picture)
    assert np.corrcoef(picture.mean(-1).ravel(), changed.mean(-1).ravel())[0, 1] > 0.8


def test_noise_tiles_wrap_around() -> None:
    field = tile(1.75)
    seam, inside = np.abs(field[0] - field[-1]).mean(), np.abs(field[1] - field[0]).mean()
    assert seam < 2 * inside
    assert field.min() == 0
    assert field.max() == 1
