"""Unmarked pictures of many kinds, each a function of its kind, part and number.

Photographs and generated pictures come from the folders that the user names, split by `pictures.split`; text and
code on the rendered pages come from Python's own library, split alike. A window of another place and scale counts
as a further picture. Both parts differ in files, text, emoji and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from pictures import PARTS, files, split
from PIL import Image, ImageDraw, ImageFont, ImageOps

from diffmark.attacks import distortion, everyday
from diffmark.vista.paint import paint
from diffmark.vista.scenes import random_scene

Rng = np.random.Generator

KINDS = {
    "files": 20,
    "windows of files": 25,
    "painted scenes": 13,
    "web pages": 17,
    "emoji": 6,
    "clip art": 6,
    "noise": 6,
    "gradients": 4,
    "flat colours": 3,
}  # parts of a hundred
MAX_SIDE = 1024
EMOJI_SIZE = 109  # the only size of a bitmap font of emoji
EMOJI_RANGES = (
    (0x1F300, 0x1F320),
    (0x1F32D, 0x1F393),
    (0x1F3A0, 0x1F3CA),
    (0x1F400, 0x1F4FC),
    (0x1F600, 0x1F64F),
)


@dataclass(frozen=True)
class Drawn:
    """A picture with what is known of it."""

    image: Image.Image
    kind: str
    attacks: tuple[str, ...]
    jpeg: bool  # whether it arrives with the block grid of a JPEG file


@dataclass(frozen=True)
class Corpus:
    """Where pictures come from. `emoji_font` may be None: there are no emoji then, but clip art."""

    folders: tuple[Path, ...]
    pages: Path
    emoji_font: Path | None
    seed: int

    def draw(self, number: int, part: str) -> Drawn:
        """Picture `number` of a part; about half of them are attacked."""
        rng = np.random.default_rng([self.seed, PARTS.index(part), number])
        kinds = list(KINDS)
        shares = np.array([KINDS[kind] for kind in kinds], float)
        kind = kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))]
        if kind == "emoji" and self.emoji_font is None:
            kind = "clip art"
        folder = self.folders[int(rng.integers(len(self.folders)))]
        image, jpeg = _MAKERS[kind](Source(self, part, folder), rng)
        kind = kind.replace("files", folder.name)
        image = image.convert("RGB")
        if max(image.size) > MAX_SIDE:
            image = ImageOps.contain(image, (MAX_SIDE, MAX_SIDE))
        names: tuple[str, ...] = ()
        if rng.random() < 0.5:
            names = tuple(rng.choice(list(ATTACKS), size=1 + int(rng.random() < 0.3), replace=False).tolist())
        for name in names:
            image, jpeg = ATTACKS[name](image, rng), name == "jpeg"
        return Drawn(image, kind, names, jpeg)


@dataclass(frozen=True)
class Source:
    """What a maker of pictures draws from."""

    corpus: Corpus
    part: str
    folder: Path  # of files


@cache
def _pages(folder: Path, part: str) -> list[Path]:
    return sorted(folder.glob(f"{part}-*.png"))


@cache
def _listed(folder: Path, part: str) -> list[Path]:
    return files(folder, part)


def _file(source: Source, rng: Rng) -> Path:
    listed = _listed(source.folder, source.part)
    return listed[int(rng.integers(len(listed)))]


def _whole(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    path = _file(source, rng)
    return Image.open(path), path.suffix.lower() in (".jpg", ".jpeg")


def _window(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    return window(Image.open(_file(source, rng)).convert("RGB"), rng, 0.15), False


def window(image: Image.Image, rng: Rng, least: float) -> Image.Image:
    """A random window of at least this share of the area, any aspect near the picture's, at a random size."""
    share, stretch = rng.uniform(least, 1) ** 0.5, math.exp(rng.uniform(-0.4, 0.4))
    width = min(image.width, max(32, round(image.width * share * stretch)))
    height = min(image.height, max(32, round(image.height * share / stretch)))
    x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    factor = rng.uniform(256, 900) / math.sqrt(width * height)
    size = (max(64, round(width * factor)), max(64, round(height * factor)))
    method = (Image.Resampling.LANCZOS, Image.Resampling.BICUBIC, Image.Resampling.BILINEAR)[
        int(rng.integers(3))
    ]
    return image.crop((x, y, x + width, y + height)).resize(size, method)


def _painted(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    scene = random_scene(2 * int(rng.integers(1 << 28)) + PARTS.index(source.part))
    return Image.fromarray(paint(scene, int(rng.choice([256, 384, 512])))), False


def _page(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    pages = _pages(source.corpus.pages, source.part)
    page = Image.open(pages[int(rng.integers(len(pages)))]).convert("RGB")
    if rng.random() < 0.3:  # at its own resolution, as a screenshot of a part of the screen
        width, height = int(rng.integers(400, 1024)), int(rng.integers(300, 1024))
        x, y = int(rng.integers(page.width - width + 1)), int(rng.integers(page.height - height + 1))
        return page.crop((x, y, x + width, y + height)), False
    return window(page, rng, 0.05), False


@cache
def _emoji_sheet(font: Path, part: str) -> tuple[Image.Image, ...]:
    """All emoji of a part, on a clear ground."""
    face = ImageFont.truetype(str(font), EMOJI_SIZE)
    characters = [chr(code) for low, high in EMOJI_RANGES for code in range(low, high)]
    drawn = []
    for character in split(characters, part):
        image = Image.new("RGBA", (136, 128))
        ImageDraw.Draw(image).text((0, 0), character, font=face, embedded_color=True)
        if image.getbbox():
            drawn.append(image)
    return tuple(drawn)


def _emoji(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    assert source.corpus.emoji_font is not None
    sheet = _emoji_sheet(source.corpus.emoji_font, source.part)
    size = int(rng.integers(256, 720))
    canvas = Image.new("RGB", (size, size), _colour(rng))
    for _ in range(int(rng.choice([1, 1, 2, 5, 20, 60]))):
        side = int(rng.uniform(0.1, 0.9) * size)
        glyph = sheet[int(rng.integers(len(sheet)))].resize((side, side), Image.Resampling.LANCZOS)
        canvas.paste(glyph, tuple(rng.integers(-side // 3, size - side // 2, 2).tolist()), glyph)
    return canvas, False


def _colour(rng: Rng) -> tuple[int, int, int]:
    r, g, b = rng.integers(0, 256, 3).tolist()
    return r, g, b


def _clip_art(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    """Filled shapes with outlines, drawn at twice the size and shrunk, as icons are."""
    width, height = rng.integers(256, 800, 2).tolist()
    canvas = Image.new("RGB", (2 * width, 2 * height), _colour(rng))
    draw = ImageDraw.Draw(canvas)
    for _ in range(int(rng.integers(1, 40))):
        x, y = int(rng.integers(2 * width)), int(rng.integers(2 * height))
        reach = int(rng.uniform(0.02, 0.5) * width)
        box, line = (x - reach, y - reach, x + reach, y + reach), int(rng.integers(0, 12))
        shape = int(rng.integers(4))
        if shape == 0:
            draw.ellipse(box, _colour(rng), _colour(rng), line)
        elif shape == 1:
            draw.rounded_rectangle(box, int(rng.uniform(0, reach)), _colour(rng), _colour(rng), line)
        elif shape == 2:
            draw.regular_polygon(
                (x, y, max(1, reach)), int(rng.integers(3, 9)), int(rng.integers(360)), _colour(rng)
            )
        else:
            draw.line([tuple(p) for p in rng.integers(0, 2 * width, (4, 2)).tolist()], _colour(rng), line + 1)
    return canvas.resize((width, height), Image.Resampling.LANCZOS), False


def _noise(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    """Amplitudes that fall with a power of the frequency, 0 (white) to 2.5, grey or coloured."""
    height, width = rng.integers(256, 640, 2).tolist()
    radius = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    radius[0, 0] = 1
    planes = 1 if rng.random() < 0.4 else 3
    spectrum = np.fft.rfft2(rng.standard_normal((planes, height, width))) / radius ** rng.uniform(0, 2.5)
    field = np.fft.irfft2(spectrum, (height, width))
    field = (field - field.mean()) / max(float(field.std()), 1e-9) * rng.uniform(5, 60) + rng.uniform(60, 200)
    pixels = np.clip(np.broadcast_to(field, (3, height, width)), 0, 255)
    return Image.fromarray(np.rint(pixels).astype(np.uint8).transpose(1, 2, 0).copy()), False


def _gradient(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    """Between two colours, along a line, around a centre or in rings."""
    height, width = rng.integers(128, 900, 2).tolist()
    y, x = np.mgrid[:height, :width].astype(np.float64)
    angle, shape = rng.uniform(0, 2 * np.pi), int(rng.integers(3))
    if shape == 0:
        level = x * np.cos(angle) + y * np.sin(angle)
    elif shape == 1:
        level = np.hypot(x - rng.uniform(0, width), y - rng.uniform(0, height))
    else:
        level = np.sin(np.hypot(x - width / 2, y - height / 2) * rng.uniform(0.005, 0.4))
    level = ((level - level.min()) / max(float(np.ptp(level)), 1e-9))[..., None]
    first, second = np.array(_colour(rng)), np.array(_colour(rng))
    return Image.fromarray(np.rint(first + level * (second - first)).astype(np.uint8)), False


def _flat(source: Source, rng: Rng) -> tuple[Image.Image, bool]:
    width, height = rng.integers(64, 900, 2).tolist()
    return Image.new("RGB", (width, height), _colour(rng)), False


_MAKERS: dict[str, Callable[[Source, Rng], tuple[Image.Image, bool]]] = {
    "files": _whole,
    "windows of files": _window,
    "painted scenes": _painted,
    "web pages": _page,
    "emoji": _emoji,
    "clip art": _clip_art,
    "noise": _noise,
    "gradients": _gradient,
    "flat colours": _flat,
}


# --- attacks at random strengths ---------------------------------------------------------------------------


def _rotated(image: Image.Image, rng: Rng) -> Image.Image:
    if rng.random() < 0.3:
        return image.transpose(list(Image.Transpose)[int(rng.integers(7))])
    return image.rotate(rng.uniform(0, 360), Image.Resampling.BICUBIC, expand=bool(rng.random() < 0.5))


def _cropped(image: Image.Image, rng: Rng) -> Image.Image:
    return distortion.crop(image, rng.uniform(0.25, 1), rng)


def frame(image: Image.Image, rng: Rng) -> Image.Image:
    """The picture as a window on a desktop: bars, a wallpaper, a title."""
    width, height = (round(side * rng.uniform(1.15, 1.5)) for side in image.size)
    screen = Image.new("RGB", (width, height), _colour(rng))
    draw = ImageDraw.Draw(screen)
    bar = max(12, height // 24)
    x, y = (
        int(rng.integers(width - image.width + 1)),
        int(rng.integers(bar, max(bar + 1, height - image.height))),
    )
    draw.rectangle((0, height - bar, width, height), (32, 33, 36))
    draw.rectangle((x - 2, y - bar, x + image.width + 1, y + image.height + 1), (228, 228, 232))
    draw.text((x + 6, y - bar + 1), "Picture viewer", (40, 40, 40), font_size=round(bar * 0.7))
    screen.paste(image, (x, y))
    return screen


def _resized(image: Image.Image, rng: Rng) -> Image.Image:
    factor = rng.uniform(0.4, 1.6) * np.array([1, math.exp(rng.normal(0, 0.05))])
    size = [max(48, round(side * by)) for side, by in zip(image.size, factor, strict=True)]
    return image.resize((size[0], size[1]), Image.Resampling.BICUBIC)


ATTACKS: dict[str, Callable[[Image.Image, Rng], Image.Image]] = {
    "jpeg": lambda image, rng: distortion.jpeg(image, rng.uniform(10, 95), rng),
    "rotation": _rotated,
    "crop": _cropped,
    "blur": lambda image, rng: distortion.blur(image, rng.uniform(0.3, 8), rng),
    "noise": lambda image, rng: distortion.noise(image, rng.uniform(0.005, 0.1), rng),
    "brightness": lambda image, rng: distortion.brightness(image, rng.uniform(0.4, 2), rng),
    "contrast": lambda image, rng: distortion.contrast(image, rng.uniform(0.4, 2), rng),
    "webp": lambda image, rng: everyday.webp(image, rng.uniform(10, 95), rng),
    "resize": _resized,
    "frame": frame,
}
