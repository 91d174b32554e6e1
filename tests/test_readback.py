"""Reading a mark back right after it was written: its luma first, the reader itself where that is not clear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffmark.mark.readback import LUMA_FPR, needed, read_pixels
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import random_secrets


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise of two scales."""
    rng = np.random.default_rng(seed)
    layers = [
        Image.fromarray(rng.integers(0, 256, (height // n, width // n, 3), np.uint8)).resize((width, height))
        for n in (8, 32)
    ]
    return Image.blend(*layers, 0.5)


def marked(cover: Image.Image, secret: Any, strength: float = 1.0) -> Image.Image:
    levels = np.asarray(cover) + strength * PixelCodec().residual(cover, secret, rounds=0)
    return Image.fromarray(np.clip(np.rint(levels), 0, 255).astype(np.uint8))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each reading beyond that of luma, whether it was a search."""
    found: list[bool] = []
    plain = PixelCodec.read

    def read(self: PixelCodec, image: Any, search: bool = True) -> Any:
        found.append(search)
        return plain(self, image, search)

    monkeypatch.setattr(PixelCodec, "read", read)
    return found


@pytest.mark.parametrize("size", [(128, 128), (256, 256), (500, 333), (900, 640)])
def test_luma_is_enough_for_a_mark_as_it_is_written(size: tuple[int, int], reads: list[bool]) -> None:
    secret = random_secrets(1)[0]
    image = marked(picture(*size), secret)
    assert read_pixels(PixelCodec(), [image], secret[None]) == []
    assert reads == []
    plain = PixelCodec().read(image, search=False).margins  # what detection does says the same
    assert np.array_equal(plain > 0, secret > 0)


def test_what_luma_leaves_open_is_read_and_searched(reads: list[bool]) -> None:
    secret, codec = random_secrets(1)[0], PixelCodec()
    image = marked(picture(512, 512), secret)
    turned = image.transpose(Image.Transpose.ROTATE_90)
    assert read_pixels(codec, [turned], secret[None]) == []
    assert reads == [False, True]
    reads.clear()
    (problem,) = read_pixels(codec, [picture(512, 512)], secret[None])
    assert "the pixel layer of image 0" in problem
    assert f"{needed(64)} are needed" in problem
    assert reads == [False, True]


def test_luma_alone_asks_for_more_than_the_rate() -> None:
    assert needed(64) < needed(64, LUMA_FPR) < 64
    assert needed(16) == needed(16, LUMA_FPR) == 16  # too short for either: all of it


def test_nothing_to_read_is_no_problem() -> None:
    assert read_pixels(PixelCodec(), [], np.zeros((0, 64), np.uint8)) == []
