"""Paint a `Scene`: sky, terrain, ground, objects, weather."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffmark.vista.canvas import LIGHTS, Canvas, colour, mix
from diffmark.vista.ground import paint_ground
from diffmark.vista.scenes import HELD_OUT, Scene, random_scene
from diffmark.vista.sky import (
    paint_clouds,
    paint_fog,
    paint_gradient,
    paint_moon,
    paint_rain,
    paint_stars,
    paint_sun,
)
from diffmark.vista.sprites import paint_forest, paint_objects
from diffmark.vista.terrain import paint_terrain

PAINTER = 2  # one more whenever a seed gives another picture: what is kept of earlier ones is not used then


def paint(scene: Scene, size: int = 256) -> NDArray[np.uint8]:
    """The picture of a scene, (size, size, 3) uint8, a function of the scene alone."""
    canvas = _canvas(scene, size)
    _paint_celestial(canvas, scene)
    _paint_land(canvas, scene)
    paint_objects(canvas, scene.objects, scene.ground, scene.time)
    if scene.weather == "foggy":
        paint_fog(canvas, 0.30)
    if scene.weather == "stormy":
        paint_rain(canvas)
    return (np.clip(canvas.image, 0, 1) * 255 + 0.5).astype(np.uint8)


def painted_scenes(count: int, first: int = 0) -> Iterator[Image.Image]:
    """Pictures of scenes that no training saw."""
    for index in range(first, first + count):
        yield Image.fromarray(paint(random_scene(HELD_OUT + index)))


def places_of_things(scene: Scene, size: int = 256) -> NDArray[np.bool_]:
    """Where the small things of a scene are (size, size): its objects, and the sun or the moon with its halo."""
    canvas = _canvas(scene, size)
    before = canvas.image.copy()
    _paint_celestial(canvas, scene)
    found = abs(canvas.image - before).max(-1) > 0.3
    _paint_land(canvas, scene)
    before = canvas.image.copy()
    paint_objects(canvas, scene.objects, scene.ground, scene.time)
    return found | (abs(canvas.image - before).max(-1) > 0.04)


def _paint_celestial(canvas: Canvas, scene: Scene) -> None:
    if scene.celestial == "stars":
        paint_stars(canvas)
    elif scene.celestial == "sun":
        paint_sun(canvas, scene.time)
    elif scene.celestial == "moon":
        paint_moon(canvas)


def _paint_land(canvas: Canvas, scene: Scene) -> None:
    """Clouds, terrain and ground."""
    fog = 1.0 if scene.weather == "foggy" else 0.0
    if scene.weather in ("cloudy", "stormy"):
        paint_clouds(canvas, stormy=scene.weather == "stormy")
    paint_terrain(canvas, scene.terrain, fog)
    if fog:
        paint_fog(canvas, 0.75)
    np.clip(canvas.image, 0, 1, out=canvas.image)  # glows add up; a mirror must not see more than white
    paint_ground(canvas, scene.ground)
    if scene.ground == "forest":
        paint_forest(canvas, fog)


def _canvas(scene: Scene, size: int) -> Canvas:
    """A bare sky in the light of the hour and the weather, every colour varied a little."""
    rng = np.random.default_rng([scene.seed, 2])
    light = LIGHTS[scene.time]
    tint = rng.normal(0, 0.022, (5, 3))
    names = ("zenith", "middle", "horizon", "sun", "shade")
    zenith, middle, haze, sun, shade = (
        np.clip(colour(*getattr(light, name)) + tint[i].astype(np.float32), 0.005, 1.1)
        for i, name in enumerate(names)
    )
    grey = {"clear": 0.0, "cloudy": 0.06, "foggy": 0.45, "stormy": 0.55}[scene.weather]
    if scene.weather == "foggy":
        zenith, middle = mix(zenith, haze, 0.5), mix(middle, haze, 0.6)
        zenith, middle, haze = (mix(c, c.mean(), grey) for c in (zenith, middle, haze))
        sun = mix(sun, shade, 0.45)
        if scene.time == "night":  # fog scatters what light there is
            zenith, middle, haze, shade = (c * 1.3 + 0.03 for c in (zenith, middle, haze, shade))
    elif scene.weather == "stormy":
        dim = 1.1 if scene.time == "night" else 0.74  # a night is dark enough
        zenith, middle, haze = (mix(c, c.mean(), grey) * dim for c in (zenith, middle, haze))
        sun, shade = mix(sun, shade, 0.65) * (dim / 0.74) ** 0.5, shade * (dim / 0.74) ** 0.5 * 0.9
    canvas = Canvas(
        image=np.empty((size, size, 3), np.float32),
        rng=rng,
        horizon=int(size * rng.uniform(0.56, 0.66)),
        sun_x=float(rng.uniform(0.15, 0.85)),
        zenith=zenith, middle=middle, haze=haze, sun=sun, shade=shade,
    )  # fmt: skip
    paint_gradient(canvas)
    return canvas
