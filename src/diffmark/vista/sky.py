"""Skies: gradient, sun, moon and stars, clouds, rain."""

import numpy as np

from diffmark.vista.canvas import Canvas, colour, mix, ramp
from diffmark.vista.noise import tile, window


def paint_gradient(canvas: Canvas) -> None:
    """From the zenith through the middle colour to the haze at the horizon."""
    y = canvas.grid[0] / canvas.horizon  # (s, 1)
    lower = ramp(y, 0.45, 1.0)[..., None]
    upper = ramp(y, 0.0, 0.65)[..., None]
    canvas.image[:] = mix(mix(canvas.zenith, canvas.middle, upper), canvas.haze, lower)


def paint_sun(canvas: Canvas, time: str) -> None:
    """A disc with a glow: high and white at noon, low and warm at dawn and sunset."""
    rng, s = canvas.rng, canvas.size
    height = rng.uniform(0.18, 0.45) if time == "noon" else rng.uniform(0.45, 0.66)
    disc = {"noon": colour(1.0, 0.99, 0.90), "dawn": colour(1.0, 0.95, 0.84)}.get(
        time, colour(1.0, 0.90, 0.58)
    )
    radius = s * (rng.uniform(0.035, 0.045) if time == "noon" else rng.uniform(0.05, 0.065))
    _paint_disc(canvas, canvas.horizon * height, radius, disc, reach=3.5, glow=0.75)


def paint_moon(canvas: Canvas) -> None:
    """A full moon with dark seas."""
    rng, s = canvas.rng, canvas.size
    radius = s * rng.uniform(0.05, 0.065)
    seas = window(rng, tile(2.2), s, s)
    disc = mix(colour(0.80, 0.83, 0.88), colour(0.98, 0.98, 0.95), ramp(seas, 0.25, 0.6)[..., None])
    _paint_disc(canvas, canvas.horizon * rng.uniform(0.18, 0.42), radius, disc, reach=2.6, glow=0.35)


def paint_stars(canvas: Canvas) -> None:
    """Bright stars and a milky way across the sky."""
    rng, s, (y, x) = canvas.rng, canvas.size, canvas.grid
    slope, middle = rng.uniform(0.35, 0.9) * rng.choice((-1, 1)), rng.uniform(0.3, 0.7)
    across = (y / s - 0.3 - slope * (x / s - middle)) / np.hypot(1, slope)
    dust = window(rng, tile(1.7), s, s)
    band = np.exp(-((across / 0.10) ** 2)) * (0.35 + 0.75 * dust)
    canvas.image += band[..., None] * colour(0.26, 0.26, 0.36)
    for _ in range(110):
        cy, cx, bright = rng.uniform(0, canvas.horizon), rng.uniform(0, s), rng.random() ** 2
        radius = canvas.unit * (0.8 + 0.9 * bright)
        top, left = max(int(cy) - 4, 0), max(int(cx) - 4, 0)
        yy, xx = y[top : top + 9], x[:, left : left + 9]
        spot = np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / (2 * radius**2)) * (0.45 + 0.55 * bright)
        canvas.image[top : top + 9, left : left + 9] += spot[..., None] * colour(0.95, 0.96, 1.0)


def paint_clouds(canvas: Canvas, stormy: bool) -> None:
    """Lit heaps of cloud; in a storm a low, dark cover."""
    rng, s, (y, _) = canvas.rng, canvas.size, canvas.grid
    rows = slice(0, canvas.horizon + 1)
    heaps = window(rng, tile(1.75, 1.7), s + 16, s)
    step = max(int(5 * canvas.unit), 1)
    body, above = heaps[step : step + canvas.horizon + 1], heaps[: canvas.horizon + 1]
    height = (y / canvas.horizon)[rows]  # (horizon + 1, 1)
    light = np.clip(0.5 + (body - above) * 2.2, 0, 1)  # denser below than above: a top, which is lit
    if stormy:
        cover = ramp(body + 0.55 * (1 - height), 0.25, 0.65) * 0.92
        dark, bright = canvas.shade * colour(0.50, 0.54, 0.62), mix(canvas.shade, canvas.haze, 0.35) * 0.9
    else:
        cover = ramp(body, 0.50, 0.74) * ramp(1 - height, 0.0, 0.35) * 0.95
        dark = mix(mix(canvas.middle, canvas.shade, 0.5), canvas.haze, 0.25)
        bright = np.minimum(mix(canvas.sun, canvas.haze, 0.25) * 1.02, 1.0)
    if canvas.disc:  # clouds part before the sun or the moon
        (cy, radius), x = canvas.disc, canvas.grid[1]
        distance = np.hypot(y[rows] - cy, x - canvas.sun_x * s)
        cover = cover * ramp(distance, 0.8 * radius, 2.2 * radius)
    canvas.lay(cover, mix(dark, bright, light[..., None]), rows)


def paint_rain(canvas: Canvas) -> None:
    """Slanting curtains of rain over the whole picture."""
    rng, s, (y, x) = canvas.rng, canvas.size, canvas.grid
    streaks = tile(1.2)
    column = (x * (1.6 / canvas.unit) + 0.55 * y / canvas.unit + rng.integers(1024)).astype(np.int32) & 1023
    row = (y * (0.10 / canvas.unit)).astype(np.int32) + rng.integers(1024 - s)
    rain = ramp(streaks[row & 1023, column], 0.55, 0.95)
    canvas.lay(rain * (0.06 + 0.18 * ramp(y / s, 0.15, 0.6)), mix(canvas.haze, colour(0.75, 0.8, 0.88), 0.4))


def paint_fog(canvas: Canvas, amount: float) -> None:
    """Banks of fog around the horizon, thinner towards the viewer."""
    rng, s, (y, _) = canvas.rng, canvas.size, canvas.grid
    banks = window(rng, tile(2.0, 3.0), s, s)
    distance = np.exp(-(((y - canvas.horizon) / (0.17 * s)) ** 2))
    canvas.lay(np.clip(amount * distance * (0.55 + 0.6 * banks), 0, 1), canvas.haze)


def _paint_disc(
    canvas: Canvas, cy: float, radius: float, disc: np.ndarray, reach: float, glow: float
) -> None:
    canvas.disc = cy, radius
    y, x = canvas.grid
    distance = np.hypot(y - cy, x - canvas.sun_x * canvas.size)
    halo = np.exp(-distance / (radius * reach)) * glow
    flat = disc if disc.ndim == 1 else disc.mean((0, 1))
    canvas.lay(halo, flat)
    canvas.lay(np.clip(radius - distance + 0.5, 0, 1), disc)
