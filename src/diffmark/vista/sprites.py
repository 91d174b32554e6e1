"""Things that stand in a landscape: pines, trees, houses, boats, birds. Drawn once a size, then pasted."""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from diffmark.vista.canvas import Canvas, colour, mix
from diffmark.vista.noise import Array

OVERSAMPLING = 4
Point = tuple[float, float]
RGB = tuple[float, float, float]


class _Sketch:
    """A transparent drawing in unit coordinates, y down, averaged to (height, width, 4) premultiplied."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self.image = Image.new("RGBA", (width * OVERSAMPLING, height * OVERSAMPLING))
        self.draw = ImageDraw.Draw(self.image)

    def _scaled(self, points: list[Point]) -> list[Point]:
        return [(x * self.image.width, y * self.image.height) for x, y in points]

    def polygon(self, points: list[Point], rgb: RGB) -> None:
        self.draw.polygon(self._scaled(points), fill=_rgb8(rgb))

    def box(self, left: float, top: float, right: float, bottom: float, rgb: RGB) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], rgb)

    def disc(self, x: float, y: float, radius: float, rgb: RGB) -> None:
        """`radius` is a part of the height."""
        r = radius * self.image.height
        cx, cy = x * self.image.width, y * self.image.height
        self.draw.ellipse((cx - r, cy - r, cx + r, cy + r), fill=_rgb8(rgb))

    def line(self, points: list[Point], rgb: RGB, width: float) -> None:
        pixels = max(int(width * self.image.height), OVERSAMPLING)
        self.draw.line(self._scaled(points), fill=_rgb8(rgb), width=pixels, joint="curve")

    def array(self) -> Array:
        n = OVERSAMPLING
        pixels = np.asarray(self.image, np.float32).reshape(self.height, n, self.width, n, 4) / 255
        pixels[..., :3] *= pixels[..., 3:]
        return pixels.mean((1, 3))


def _rgb8(rgb: RGB) -> tuple[int, int, int, int]:
    r, g, b = (int(np.clip(value, 0, 1) * 255) for value in rgb)
    return r, g, b, 255


@lru_cache(maxsize=512)
def pine(height: int, variant: int) -> Array:
    """A pine of drooping tiers, lit from the right."""
    rng = np.random.default_rng([1, variant])
    sketch = _Sketch(height, max(height // 2, 2))
    sketch.box(0.46, 0.85, 0.54, 1.0, (0.24, 0.16, 0.10))
    tiers = 7
    for tier in reversed(range(tiers)):
        top, bottom = 0.92 * tier / tiers - 0.02, 0.92 * (tier + 1.55) / tiers
        half = 0.48 * ((tier + 1) / tiers) ** 0.85 * rng.uniform(0.85, 1.05)
        bottom = min(bottom, 0.93)
        droop = [(0.5 + half * u, bottom - 0.03 * rng.random()) for u in np.linspace(-1, 1, 7)]
        tone = 0.80 + 0.3 * tier / tiers
        sketch.polygon([(0.5, max(top, 0)), *reversed(droop)], (0.13 * tone, 0.26 * tone, 0.15 * tone))
        lit = [(0.5 + half * u, bottom - 0.03 - 0.03 * rng.random()) for u in np.linspace(0.15, 0.92, 4)]
        sketch.polygon([(0.5, max(top, 0)), *reversed(lit)], (0.24 * tone, 0.40 * tone, 0.20 * tone))
    return sketch.array()


@lru_cache(maxsize=64)
def tree(height: int, variant: int) -> Array:
    """A broad leafy tree, lit from the right."""
    rng = np.random.default_rng([2, variant])
    sketch = _Sketch(height, height)
    bark = (0.30, 0.21, 0.14)
    sketch.polygon([(0.46, 0.5), (0.54, 0.5), (0.57, 1.0), (0.42, 1.0)], bark)
    for x in (0.25, 0.38, 0.64, 0.76):
        sketch.line([(0.5, 0.72), (x, 0.42)], bark, 0.035)
    blobs = [(rng.uniform(0.17, 0.83), rng.uniform(0.15, 0.56), rng.uniform(0.10, 0.15)) for _ in range(26)]
    blobs += [(0.5, 0.33, 0.26), (0.33, 0.42, 0.18), (0.67, 0.42, 0.18)]
    blobs = [b for b in blobs if (b[0] - 0.5) ** 2 / 0.16 + (b[1] - 0.37) ** 2 / 0.07 < 1]
    for offset, tone in ((0.0, 0.60), (0.035, 0.90), (0.065, 1.25)):
        for x, y, r in blobs:
            shrink = 1 - offset * 8
            sketch.disc(x + offset, y - offset, r * shrink, (0.24 * tone, 0.42 * tone, 0.13 * tone))
    return sketch.array()


@lru_cache(maxsize=64)
def house(height: int, variant: int, lamps: bool) -> Array:
    """A gabled house with chimney, door and windows; `lamps` lights the windows."""
    wall, roof = (
        ((0.93, 0.90, 0.84), (0.68, 0.25, 0.17)),
        ((0.70, 0.22, 0.16), (0.32, 0.27, 0.27)),
        ((0.66, 0.47, 0.29), (0.36, 0.24, 0.17)),
    )[variant % 3]
    sketch = _Sketch(height, int(height * 1.25))
    dark = tuple(0.72 * value for value in wall)
    pane = (1.0, 0.84, 0.40) if lamps else (0.32, 0.42, 0.52)
    sketch.box(0.70, 0.06, 0.79, 0.42, (0.48, 0.36, 0.32))
    sketch.box(0.42, 0.46, 0.95, 1.0, wall)
    sketch.polygon([(0.05, 1.0), (0.05, 0.48), (0.25, 0.16), (0.45, 0.48), (0.45, 1.0)], dark)  # type: ignore[arg-type]
    sketch.polygon([(0.25, 0.10), (0.80, 0.10), (1.0, 0.50), (0.45, 0.50)], roof)
    sketch.polygon([(0.25, 0.10), (0.0, 0.50), (0.06, 0.53), (0.25, 0.23), (0.44, 0.53), (0.49, 0.50)], roof)
    sketch.box(0.19, 0.64, 0.31, 1.0, (0.30, 0.20, 0.14))
    for left in (0.53, 0.75):
        sketch.box(left, 0.62, left + 0.13, 0.82, pane)
    return sketch.array()


@lru_cache(maxsize=64)
def boat(height: int, variant: int) -> Array:
    """A sailing boat with two sails."""
    sail = ((0.98, 0.97, 0.93), (0.86, 0.24, 0.18), (0.96, 0.78, 0.30))[variant % 3]
    pale = tuple(0.84 * value for value in sail)
    sketch = _Sketch(height, height)
    sketch.polygon([(0.08, 0.80), (0.94, 0.80), (0.80, 1.0), (0.20, 1.0)], (0.36, 0.20, 0.13))
    sketch.polygon([(0.08, 0.80), (0.94, 0.80), (0.92, 0.85), (0.11, 0.85)], (0.88, 0.82, 0.74))
    sketch.line([(0.47, 0.02), (0.47, 0.80)], (0.25, 0.18, 0.14), 0.03)
    sketch.polygon([(0.50, 0.04), (0.50, 0.75), (0.90, 0.75)], sail)
    sketch.polygon([(0.44, 0.12), (0.44, 0.75), (0.14, 0.75)], pale)  # type: ignore[arg-type]
    return sketch.array()


@lru_cache(maxsize=64)
def bird(height: int, variant: int) -> Array:
    """A bird in flight, seen from afar."""
    lift = (0.0, 0.18, 0.34)[variant % 3]
    sketch = _Sketch(height, height * 2)
    wing = [(0.02, 0.30 + lift), (0.18, 0.18 + lift / 2), (0.36, 0.30), (0.5, 0.62)]
    under = [(0.38, 0.50), (0.18, 0.36 + lift / 2)]
    for flip in (False, True):
        points = [(1 - x if flip else x, y) for x, y in [*wing, (0.5, 0.82), *under]]
        sketch.polygon(points, (0.10, 0.10, 0.13))
    return sketch.array()


def paste(
    canvas: Canvas, sprite: Array, bottom: float, centre: float, light: Array, flip: bool = False
) -> None:
    """Paste a premultiplied sprite (h, w, 4) with its foot at row `bottom` and middle at column `centre`."""
    if flip:
        sprite = sprite[:, ::-1]
    height, width = sprite.shape[:2]
    top, left = round(bottom) - height, round(centre) - width // 2
    y0, y1 = max(top, 0), min(top + height, canvas.size)
    x0, x1 = max(left, 0), min(left + width, canvas.size)
    if y0 >= y1 or x0 >= x1:
        return
    part = sprite[y0 - top : y1 - top, x0 - left : x1 - left]
    under = canvas.image[y0:y1, x0:x1]
    under *= 1 - part[..., 3:]
    under += part[..., :3] * light


def paint_forest(canvas: Canvas, fog: float) -> None:
    """Pines from a dense far edge of the wood to single near trees."""
    rng, s = canvas.rng, canvas.size
    flip = canvas.sun_x < 0.5
    for depth, count in ((0.0, 34), (0.22, 16), (0.55, 8)):
        bottom = canvas.horizon + (s - canvas.horizon) * (0.10 + 1.15 * depth)
        haze = (0.42 - 0.7 * depth) * (0.6 + 0.6 * fog)
        for x in rng.permutation(np.linspace(-0.03, 1.03, count)) + rng.normal(0, 0.02, count):
            height = s * (0.13 + 0.42 * depth) * rng.uniform(0.75, 1.25)
            light = mix(canvas.shade, canvas.sun, rng.uniform(0.45, 1.0))
            tint = mix(light, canvas.haze * 2.6, max(haze, 0) * 0.45)  # sprites are dark: haze lifts them
            sprite = pine(max(int(height / 4) * 4, 8), int(rng.integers(6)))
            paste(canvas, sprite, bottom + s * rng.uniform(-0.02, 0.05), x * s, tint, flip)


def paint_objects(canvas: Canvas, objects: tuple[str, ...], ground: str, time: str) -> None:
    """House, boat, birds and tree where the ground has room for them."""
    rng, s, hz = canvas.rng, canvas.size, canvas.horizon
    left_first = bool(rng.random() < 0.5)
    light = mix(canvas.shade, canvas.sun, 0.85)
    flip = canvas.sun_x < 0.5
    if "birds" in objects:
        _paint_flock(canvas)
    if "house" in objects:
        height = int(s * rng.uniform(0.17, 0.22))
        x = rng.uniform(0.2, 0.42) if left_first else rng.uniform(0.58, 0.8)
        bottom = hz + (s - hz) * rng.uniform(0.32, 0.45) + (0.2 * (s - hz) if ground == "forest" else 0)
        sprite = house(height, int(rng.integers(3)), lamps=time in ("dusk", "night"))
        paste(
            canvas,
            _with_lamps(sprite, light) if time in ("dusk", "night") else sprite * _rgba(light),
            bottom,
            x * s,
            colour(1, 1, 1),
            flip,
        )
    if "boat" in objects:
        height = int(s * rng.uniform(0.15, 0.21))
        x = rng.uniform(0.2, 0.45) if left_first else rng.uniform(0.55, 0.8)
        bottom = hz + (s - hz) * (rng.uniform(0.22, 0.30) if ground == "beach" else rng.uniform(0.25, 0.5))
        sprite = boat(height, int(rng.integers(3)))
        paste(canvas, sprite[::-1] * 0.45, bottom + height * 0.96, x * s, light, flip)
        paste(canvas, sprite, bottom, x * s, light, flip)
    if "tree" in objects:
        height = int(s * rng.uniform(0.42, 0.55) / 4) * 4
        x = rng.uniform(0.70, 0.84) if left_first else rng.uniform(0.16, 0.30)
        paste(canvas, tree(height, int(rng.integers(6))), s * rng.uniform(0.90, 0.97), x * s, light, flip)


def _paint_flock(canvas: Canvas) -> None:
    """Three or four birds, each well apart from the next; dark before a bright sky, white before a dark one."""
    rng, s, hz = canvas.rng, canvas.size, canvas.horizon
    count = int(rng.integers(3, 5))
    middle, top, apart = rng.uniform(0.4, 0.6), rng.uniform(0.22, 0.5), rng.uniform(0.18, 0.21)
    for index in range(count):
        place = index - (count - 1) / 2
        x = (middle + place * apart + rng.normal(0, 0.012)) * s
        y = (top + abs(place) * 0.09 + rng.normal(0, 0.03)) * hz
        height = int(s * rng.uniform(0.055, 0.075))
        top_left = max(int(y) - height, 0), max(int(x) - height, 0)
        behind = canvas.image[top_left[0] : int(y) + 1, top_left[1] : int(x) + height]
        tone = 1.0 if behind.mean() > 0.42 else 8.5
        paste(canvas, bird(height, int(rng.integers(3))), y, x, colour(tone, tone, tone))


def _rgba(light: Array) -> Array:
    return np.concatenate([light, colour(1.0)])


def _with_lamps(sprite: Array, light: Array) -> Array:
    """Darken a house to the evening light, but not its lit windows."""
    lamp = np.clip((sprite[..., 0] - sprite[..., 2] - 0.45) * 6, 0, 1)[..., None]
    shaded = sprite * _rgba(light)
    return shaded + lamp * (sprite - shaded)
