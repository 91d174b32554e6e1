"""Terrain: ranges of mountains, hills, dunes, mesas and a volcano, from far to near."""

import numpy as np

from diffmark.vista.canvas import Canvas, colour, mix, ramp
from diffmark.vista.noise import Array, lookup, profile, tile, window

LAYERS = 3


def paint_terrain(canvas: Canvas, terrain: str, fog: float) -> None:
    """Paint `terrain` in three ranges; each further one fades into the haze, more so in fog."""
    if terrain == "volcano":
        _paint_range(canvas, "mountains", 0, fog, low=0.45)
        _paint_volcano(canvas, fog)
        _paint_range(canvas, "hills", 2, fog, low=0.5)
        return
    for layer in range(LAYERS):
        _paint_range(canvas, terrain, layer, fog)


def _haze(layer: int, fog: float) -> float:
    return min((0.52, 0.28, 0.08)[layer] * (1 + 0.3 * fog) + 0.22 * fog, 0.9)


def _paint_range(canvas: Canvas, terrain: str, layer: int, fog: float, low: float = 1.0) -> None:
    rng, s, (y, _) = canvas.rng, canvas.size, canvas.grid
    line = _ridge(rng, s, terrain, layer)  # (s,) in [0, 1]
    height = {"mountains": 0.36, "snowy mountains": 0.40, "hills": 0.20, "dunes": 0.20, "canyon": 0.30}[
        terrain
    ]
    reach = s * height * low * (1.0, 0.74, 0.46)[layer] * rng.uniform(0.85, 1.1)
    base = canvas.horizon + s * (0.0, 0.008, 0.016)[layer]
    top = base - reach * (0.12 + 0.88 * line)
    rows = slice(max(int(top.min()) - 1, 0), min(int(base) + 3, s))
    depth = y[rows] - top[None]  # pixels below the ridge, (h, s)
    mask = np.clip(depth + 0.5, 0, 1)
    # Texture follows the broad shape of the ridge: every small notch would draw a streak below itself.
    broad = _blurred(line, max(int(10 * canvas.unit), 1))
    slope = np.gradient(broad) * reach * (-1 if canvas.sun_x > 0.5 else 1)  # > 0: turned away from the sun
    below = y[rows] - (base - reach * (0.12 + 0.88 * broad))[None]
    surface = _SURFACES[terrain](canvas, below, broad[None], slope[None], reach)
    canvas.lay(mask, mix(surface, canvas.haze, _haze(layer, fog)), rows)


def _blurred(line: Array, radius: int) -> Array:
    padded = np.pad(line, radius, mode="edge")
    total = np.cumsum(np.concatenate([[0.0], padded]))
    width = 2 * radius + 1
    return ((total[width:] - total[:-width]) / width).astype(np.float32)


def _ridge(rng: np.random.Generator, s: int, terrain: str, layer: int) -> Array:
    if "mountains" in terrain:
        return profile(rng, s, rng.uniform(2.0, 3.2) + layer, 0.48, 6, smooth=False)
    if terrain == "hills":
        return profile(rng, s, rng.uniform(1.6, 2.6) + layer, 0.28, 3, smooth=True)
    if terrain == "dunes":
        line = profile(rng, s, rng.uniform(1.5, 2.4) + 0.8 * layer, 0.16, 2, smooth=True)
        return np.asarray(line**1.4, np.float32)  # troughs broader than crests
    line = profile(rng, s, rng.uniform(2.4, 3.6) + layer, 0.45, 5, smooth=False)
    mesas = 0.42 * ramp(line, 0.40, 0.46) + 0.40 * ramp(line, 0.60, 0.65) + 0.10 * ramp(line, 0.80, 0.83)
    return mesas + 0.08 * line


def _gullies(canvas: Canvas, depth: Array, roughness: float = 1.75) -> tuple[Array, Array]:
    """Noise that runs down from the ridge, and its light from the side of the sun."""
    rng = canvas.rng
    field, step = tile(roughness), 4 if canvas.sun_x > 0.5 else -4
    below = np.maximum(depth, 0) / canvas.unit
    row = np.arange(depth.shape[0], dtype=np.float32)[:, None] / canvas.unit
    y = 0.45 * below + 0.35 * row + rng.integers(1024)
    x = canvas.grid[1] / canvas.unit + rng.choice((-0.5, 0.5)) * below + rng.integers(1024)
    here, beside = lookup(field, y, x), lookup(field, y, x + step)
    return here, np.clip(0.5 + (here - beside) * 2.4, 0, 1)


def _rock(canvas: Canvas, depth: Array, line: Array, slope: Array, reach: float) -> Array:
    rough, light = _gullies(canvas, depth)
    light = np.clip(0.55 * light + 0.45 * np.clip(0.5 - 0.35 * slope, 0, 1), 0, 1)
    stone = mix(colour(0.34, 0.33, 0.36), colour(0.56, 0.53, 0.52), rough[..., None])
    return stone * canvas.lit(light) * 1.12


def _snowy_rock(canvas: Canvas, depth: Array, line: Array, slope: Array, reach: float) -> Array:
    rough, light = _gullies(canvas, depth)
    light = np.clip(0.6 * light + 0.4 * np.clip(0.5 - 0.35 * slope, 0, 1), 0, 1)
    stone = mix(colour(0.22, 0.25, 0.33), colour(0.38, 0.40, 0.47), rough[..., None])
    snow = ramp(reach * (0.10 + 0.42 * line) * (0.25 + 1.3 * rough) - depth, -3.0, 6.0)
    white = mix(colour(0.70, 0.80, 1.0), colour(1.0, 1.0, 1.0), light[..., None])  # blue in the shadow
    return mix(stone, white, snow[..., None]) * mix(canvas.lit(light), 1.0, 0.12 * snow[..., None])


def _grass(canvas: Canvas, depth: Array, line: Array, slope: Array, reach: float) -> Array:
    rng, s = canvas.rng, canvas.size
    rough = window(rng, tile(1.55), *depth.shape)
    patches = window(rng, tile(2.2), *depth.shape)
    green = mix(colour(0.22, 0.40, 0.14), colour(0.50, 0.60, 0.22), ramp(patches, 0.3, 0.7)[..., None])
    light = np.clip(0.72 - 0.45 * slope - 0.25 * ramp(depth, 0, 0.14 * s) + 0.35 * (rough - 0.5), 0, 1)
    return green * canvas.lit(light)


def _dune(canvas: Canvas, depth: Array, line: Array, slope: Array, reach: float) -> Array:
    rough = window(canvas.rng, tile(1.8, 2.0), *depth.shape)
    fade = np.exp(-np.maximum(depth, 0) / (0.16 * canvas.size))
    light = np.clip(0.62 - 0.75 * slope * fade + 0.16 * (rough - 0.5), 0, 1)
    return mix(colour(0.80, 0.56, 0.32), colour(0.95, 0.77, 0.48), light[..., None]) * canvas.lit(light)


def _strata(canvas: Canvas, depth: Array, line: Array, slope: Array, reach: float) -> Array:
    rng, s = canvas.rng, canvas.size
    rough, light = _gullies(canvas, depth * 0.4)
    layers = profile(rng, max(depth.shape[0], 2), 7, 0.8, 2, smooth=True)[: depth.shape[0], None]
    bands = np.clip(layers * 1.5 - 0.25 + 0.25 * (rough - 0.5), 0, 1)
    red = mix(colour(0.56, 0.20, 0.10), colour(0.93, 0.56, 0.32), bands[..., None])
    light = np.clip(0.45 * light + 0.40 - 0.35 * np.clip(slope, -1, 1) - 0.2 * ramp(depth, 0, 0.25 * s), 0, 1)
    return red * canvas.lit(light)


_SURFACES = {
    "mountains": _rock,
    "snowy mountains": _snowy_rock,
    "hills": _grass,
    "dunes": _dune,
    "canyon": _strata,
}


def _paint_volcano(canvas: Canvas, fog: float) -> None:
    """A cone with a glowing crater, lava on its flank and a plume of smoke."""
    rng, s, (y, x) = canvas.rng, canvas.size, canvas.grid
    peak_x, reach = s * rng.uniform(0.32, 0.68), s * rng.uniform(0.34, 0.40)
    peak_y, crater = canvas.horizon - reach, s * rng.uniform(0.05, 0.065)
    lean = rng.choice((-1.0, 1.0)) * rng.uniform(0.15, 0.4)
    rise = np.maximum(peak_y + 4 - y, 0)  # (s, 1) pixels above the crater
    billow = window(rng, tile(1.9), s, s)
    width = crater * 0.8 + rise * 0.34
    off = np.abs(x - peak_x - lean * rise + (billow - 0.5) * width * 1.2) / width
    plume = ramp(1.05 - off, 0.0, 0.45) * ramp(rise, 0, 6) * (1 - 0.55 * rise / s)
    smoke = mix(canvas.shade * 0.62, canvas.sun * 0.72, billow[..., None])
    ember = np.exp(-rise / (0.07 * s))[..., None] * colour(0.9, 0.28, 0.05)
    canvas.lay(plume * 0.92, np.clip(smoke + ember, 0, 1))

    away = np.abs(x - peak_x) / s  # (1, s)
    flank = np.maximum(away - crater / s, 0)
    rough_line = (profile(rng, s, 9, 0.5, 4, smooth=False) - 0.5)[None] * 0.035 * s
    top = peak_y + reach * (1 - np.exp(-flank * 4.6)) * 1.12 + rough_line * ramp(flank, 0, 0.1)
    rows = slice(max(int(top.min()) - 1, 0), min(canvas.horizon + 3, s))
    depth = y[rows] - top
    rough, light = _gullies(canvas, depth)
    side = ramp((x - peak_x) / s * (1 if canvas.sun_x > 0.5 else -1), -0.2, 0.2)
    stone = mix(colour(0.20, 0.16, 0.16), colour(0.40, 0.32, 0.30), rough[..., None])
    surface = mix(stone * canvas.lit(0.5 * light + 0.5 * side), canvas.haze, _haze(1, fog) * 0.7)
    canvas.lay(np.clip(depth + 0.5, 0, 1), surface, rows)

    down = np.maximum(y[rows] - peak_y, 0)  # lava runs down from the crater
    for _ in range(3):
        path = (
            peak_x
            + rng.uniform(-0.9, 0.9) * crater
            + (rough[:, :1] - 0.5) * 0.06 * s
            + rng.uniform(-0.35, 0.35) * down
        )
        length = rng.uniform(0.16, 0.28) * s
        stream = np.clip(1.6 + 1.4 * (1 - down / length) - np.abs(x - path) / canvas.unit, 0, 1) * ramp(
            length - down, 0, 8
        )
        canvas.lay(stream * np.clip(depth + 0.5, 0, 1), colour(1.0, 0.45, 0.10), rows)
    glow = np.exp(-(((x - peak_x) / (1.6 * crater)) ** 2) - ((y - peak_y) / (0.9 * crater)) ** 2)
    canvas.image += glow[..., None] * colour(0.85, 0.30, 0.06)
