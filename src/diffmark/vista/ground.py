"""Grounds: lake, meadow, forest floor, snowfield and beach, in perspective below the horizon."""

import numpy as np

from diffmark.vista.canvas import Canvas, colour, mix, ramp
from diffmark.vista.noise import Array, lookup, profile, tile, window


def paint_ground(canvas: Canvas, ground: str) -> None:
    """Paint everything below the horizon."""
    rows = slice(canvas.horizon, canvas.size)
    near = (canvas.grid[0][rows] - canvas.horizon) / (canvas.size - canvas.horizon)  # 0 far, 1 near, (h, 1)
    paint = {"lake": _lake, "meadow": _meadow, "forest": _floor, "snowfield": _snow, "beach": _beach}[ground]
    surface = paint(canvas, near)
    mask = np.clip(near * (canvas.size - canvas.horizon), 0, 1) * np.ones((1, canvas.size), np.float32)
    canvas.lay(mask, surface, rows)


def _perspective(canvas: Canvas, near: Array, field: Array, scale: float, flat: float = 1.0) -> Array:
    """A noise tile laid on the ground plane, (h, s)."""
    depth = 1 / (near + 0.10)  # grows towards the horizon
    x = (canvas.grid[1] - canvas.size / 2) / canvas.unit * scale * depth + canvas.rng.integers(1024)
    y = 160 * flat * scale * depth + canvas.rng.integers(1024)
    return lookup(field, y, x)


def _lake(canvas: Canvas, near: Array) -> Array:
    s, hz = canvas.size, canvas.horizon
    (y, x), rows = canvas.grid, slice(hz, s)
    ripple = _perspective(canvas, near, tile(1.8, 3.0), 0.5, flat=2.5) - 0.5
    reach = near * 9 * canvas.unit
    mirror_y = np.clip(2 * hz - y[rows] * 1.0 + ripple * reach * 1.6, 0, hz).astype(np.int32)
    mirror_x = np.clip(x + ripple * reach * 0.8, 0, s - 1).astype(np.int32)
    mirror = canvas.image[mirror_y, mirror_x]
    deep = canvas.shade * colour(0.30, 0.52, 0.66)
    water = mix(mirror, deep, (0.22 + 0.22 * near)[..., None])
    return water + (ripple * (0.05 + 0.13 * near))[..., None] * canvas.sun


def _meadow(canvas: Canvas, near: Array) -> Array:
    rng = canvas.rng
    grass = _perspective(canvas, near, tile(1.35), 0.5)
    patches = _perspective(canvas, near, tile(2.2), 0.25)
    green = mix(colour(0.20, 0.38, 0.10), colour(0.50, 0.64, 0.20), (0.6 * grass + 0.4 * patches)[..., None])
    surface = green * canvas.lit(np.clip(0.55 + 0.6 * (grass - 0.5) + 0.2 * (patches - 0.5), 0, 1))
    blossoms = ((0.90, 0.24, 0.22), (0.98, 0.82, 0.22), (0.96, 0.94, 0.96), (0.66, 0.36, 0.80))
    for index in rng.choice(len(blossoms), 2, replace=False):
        heads = _perspective(canvas, near, tile(1.35), 0.7) + 0.35 * (
            window(rng, tile(2.2), *grass.shape) - 0.5
        )
        mask = ramp(heads, 0.84, 0.96) * ramp(near, 0.04, 0.25)
        surface = mix(
            surface, colour(*blossoms[index]) * canvas.lit(np.full_like(heads, 0.8)), mask[..., None]
        )
    return surface


def _floor(canvas: Canvas, near: Array) -> Array:
    moss = _perspective(canvas, near, tile(1.5), 0.5)
    green = mix(colour(0.13, 0.22, 0.11), colour(0.30, 0.38, 0.18), moss[..., None])
    return green * canvas.lit(np.clip(0.5 + 0.5 * (moss - 0.5), 0, 1))


def _snow(canvas: Canvas, near: Array) -> Array:
    drifts = _perspective(canvas, near, tile(2.2, 2.0), 0.4, flat=1.6)
    soft = _perspective(canvas, near, tile(2.2), 0.22)
    light = np.clip(0.65 + 1.1 * (drifts - 0.5) * (0.35 + 0.65 * near) + 0.35 * (soft - 0.5), 0, 1)
    return colour(0.95, 0.97, 1.0) * mix(canvas.lit(light), 1.0, 0.06)


def _beach(canvas: Canvas, near: Array) -> Array:
    """Sea towards the horizon, a line of foam, then sand."""
    rng, s = canvas.rng, canvas.size
    tilt = rng.uniform(-0.28, 0.28)
    shore = (
        0.46
        + tilt * (canvas.grid[1] / s - 0.5)
        + 0.10 * (profile(rng, s, 2.5, 0.3, 3, smooth=True)[None] - 0.5)
    )
    waves = _perspective(canvas, near, tile(1.8, 3.0), 0.4, flat=3.0)
    sea = mix(
        mix(canvas.middle, canvas.haze, 0.3),
        canvas.shade * colour(0.20, 0.66, 0.74),
        (0.45 + 0.4 * near)[..., None],
    )
    sea = sea + ((waves - 0.5) * (0.08 + 0.16 * near))[..., None] * canvas.sun
    grain = _perspective(canvas, near, tile(1.6), 0.5)
    sand = mix(colour(0.80, 0.66, 0.44), colour(0.94, 0.83, 0.62), grain[..., None])
    wet = ramp(shore + 0.16 - near, 0.0, 0.14)[..., None]
    sand = sand * canvas.lit(np.clip(0.75 + 0.35 * (grain - 0.5), 0, 1)) * (1 - 0.34 * wet)
    surface = mix(sea, sand, ramp(near - shore, -0.006, 0.012)[..., None])
    for offset, strength in ((0.0, 0.95), (-0.10, 0.55), (-0.19, 0.35)):
        line = shore + offset + 0.03 * (waves - 0.5)
        foam = np.exp(-(((near - line) / 0.020) ** 2)) * strength
        surface = mix(surface, np.minimum(canvas.lit(np.ones_like(foam)), 1.0), foam[..., None])
    return surface
