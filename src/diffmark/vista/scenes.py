"""Captioned landscapes: what a scene can hold, how it is drawn by lot, and what it is called.

A `Scene` is a list of attributes and a seed; `diffmark.vista.paint.paint` makes a picture of it. Everything
is a function of the seed: the same seed gives the same attributes, captions and pixels.
"""

from dataclasses import dataclass, replace

import numpy as np

TIMES = ("dawn", "noon", "sunset", "dusk", "night")
WEATHERS = ("clear", "cloudy", "foggy", "stormy")
TERRAINS = ("mountains", "snowy mountains", "hills", "dunes", "canyon", "volcano")
GROUNDS = ("lake", "meadow", "forest", "snowfield", "beach")
CELESTIALS = ("none", "sun", "moon", "stars")
OBJECTS = ("house", "boat", "birds", "tree")

HELD_OUT = 1 << 30
"""Seeds from here on are never used in training."""


@dataclass(frozen=True)
class Scene:
    """The attributes of one landscape; `seed` decides everything that they leave open."""

    seed: int
    time: str
    weather: str
    terrain: str
    ground: str
    celestial: str = "none"
    objects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        choices = {
            "time": TIMES,
            "weather": WEATHERS,
            "terrain": TERRAINS,
            "ground": GROUNDS,
            "celestial": CELESTIALS,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(allowed)}")
        for name in self.objects:
            if name not in OBJECTS:
                raise ValueError(f"objects: {name!r} is not one of {', '.join(OBJECTS)}")
            if name not in possible_objects(self.ground):
                raise ValueError(f"objects: a {name} has no place in a scene with a {self.ground}")


def possible_objects(ground: str) -> tuple[str, ...]:
    """Objects that fit a ground: boats need water, houses and lone trees open land."""
    on_ground = {"lake": ("boat",), "forest": ("house",), "beach": ("boat", "tree")}
    return (*on_ground.get(ground, ("house", "tree")), "birds")


def possible_celestials(time: str, weather: str) -> tuple[str, ...]:
    """What can be seen in the sky; the same thing twice makes it twice as likely."""
    if weather in ("foggy", "stormy"):
        return ("none",)
    if time == "night":
        return ("moon", "stars") if weather == "clear" else ("moon", "none")
    return ("moon", "none") if time == "dusk" else ("sun", "sun", "none")


def random_scene(seed: int) -> Scene:
    """The scene of a seed: every attribute drawn by lot."""
    rng = np.random.default_rng([seed, 1])
    time = str(rng.choice(TIMES))
    weather = str(rng.choice(WEATHERS, p=(0.4, 0.3, 0.15, 0.15)))
    ground = str(rng.choice(GROUNDS))
    objects = [name for name in possible_objects(ground) if rng.random() < 0.3]
    return Scene(
        seed=seed,
        time=time,
        weather=weather,
        terrain=str(rng.choice(TERRAINS)),
        ground=ground,
        celestial=str(rng.choice(possible_celestials(time, weather))),
        objects=tuple(objects),
    )


def twin_scene(seed: int) -> Scene:
    """The scene of a seed with the objects that it could have and has not: the same landscape otherwise."""
    scene = random_scene(seed)
    others = [name for name in possible_objects(scene.ground) if name not in scene.objects]
    return replace(scene, objects=tuple(others))


# Several ways to say each thing. The first is the plainest and is the one used for measuring.
PHRASES: dict[str, tuple[str, ...]] = {
    "dawn": ("at dawn", "at sunrise", "in the early morning"),
    "noon": ("at noon", "by day", "in bright daylight"),
    "sunset": ("at sunset", "in the golden evening"),
    "dusk": ("at dusk", "at twilight"),
    "night": ("at night", "by night"),
    "clear": ("under a clear sky", "in clear weather"),
    "cloudy": ("under a cloudy sky", "with drifting clouds", "under white clouds"),
    "foggy": ("in fog", "in the mist", "on a foggy day"),
    "stormy": ("in a storm", "in the rain", "under dark storm clouds"),
    "mountains": ("rocky mountains", "mountains", "grey mountain peaks"),
    "snowy mountains": ("snowy mountains", "snowy peaks", "mountains covered in snow"),
    "hills": ("green hills", "rolling hills", "hills"),
    "dunes": ("desert dunes", "sand dunes", "a desert"),
    "canyon": ("a red canyon", "red rocks", "a canyon"),
    "volcano": ("a volcano", "an erupting volcano"),
    "lake": ("a lake", "a calm lake", "still water"),
    "meadow": ("a flower meadow", "a meadow", "a field of flowers"),
    "forest": ("a pine forest", "a forest", "pine trees"),
    "snowfield": ("a snowfield", "a field of snow"),
    "beach": ("a sandy beach", "a beach", "the sea shore"),
    "sun": ("the sun", "a low sun", "a bright sun"),
    "moon": ("the moon", "a full moon"),
    "stars": ("stars", "a starry sky", "the milky way"),
    "house": ("a house", "a small house", "a cabin"),
    "boat": ("a boat", "a sailing boat"),
    "birds": ("birds", "flying birds"),
    "tree": ("a tree", "a lone tree", "a big tree"),
}

PLACES = ("above", "behind", "beyond")  # terrain above ground
FRONTS = ("before", "in front of", "below")  # ground before terrain
OPENINGS = ("", "", "", "a view of ", "a landscape of ", "a picture of ", "a photo of ")


def caption(scene: Scene) -> str:
    """The plain caption: every attribute in its first phrase."""
    say = {name: phrases[0] for name, phrases in PHRASES.items()}
    extras = [say[name] for name in _extras(scene)]
    first = f"{say[scene.terrain]} {say[scene.time]} {say[scene.weather]} above {say[scene.ground]}"
    return ", ".join([first, *extras])


def random_caption(scene: Scene, rng: np.random.Generator) -> str:
    """A caption in one of several orders and wordings, sometimes without an attribute.

    A clear sky often goes without saying; other things are left out rarely, so that a prompt which does not
    mention them gets their average, and a prompt without weather a clear sky.
    """

    def say(name: str) -> str:
        return str(rng.choice(PHRASES[name]))

    silent = {"weather": 0.6 if scene.weather == "clear" else 0.05, "time": 0.05, "ground": 0.05}
    said = {key: rng.random() >= p for key, p in silent.items()}
    time = say(scene.time) if said["time"] else ""
    weather = say(scene.weather) if said["weather"] else ""
    ground = say(scene.ground) if said["ground"] else ""
    terrain = say(scene.terrain)
    extras = [say(name) for name in _extras(scene) if rng.random() >= 0.05]
    rng.shuffle(extras)
    opening = str(rng.choice(OPENINGS))
    order = rng.integers(4)
    if order == 0:  # terrain, time, weather, ground
        place = f"{rng.choice(PLACES)} {ground}" if ground else ""
        parts = [_join(opening + terrain, time, weather, place)]
    elif order == 1:  # terrain, time, ground, weather: as in "snowy mountains at dawn above a lake"
        place = f"{rng.choice(PLACES)} {ground}" if ground else ""
        parts = [_join(opening + terrain, time, place), weather]
    elif order == 2 and ground:  # ground first
        parts = [_join(opening + ground, str(rng.choice(FRONTS)), terrain, time, weather)]
    else:  # a list
        parts = [opening + terrain, ground, time, weather]
    return ", ".join(part for part in [*parts, *extras] if part)


def vocabulary() -> list[str]:
    """Every word that a caption can hold, sorted."""
    texts = [*OPENINGS, *PLACES, *FRONTS, *(text for phrases in PHRASES.values() for text in phrases)]
    return sorted({word for text in texts for word in text.split()})


def _extras(scene: Scene) -> list[str]:
    return [*([scene.celestial] if scene.celestial != "none" else []), *scene.objects]


def _join(*parts: str) -> str:
    return " ".join(part.strip() for part in parts if part.strip())
