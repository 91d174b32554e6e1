"""Test vectors of the pixel layer, for readers in other languages.

    PYTHONPATH=src python tests/pixel_vectors.py      # writes tests/vectors/pixel.json and its pictures

A reader that is written anew can be checked from the first step to the last: numbers of a key, what is dealt from
them, tones, and the scores of two marked pictures. Run it again after a change of the layer's constants.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.pixel.layout import Layout, PixelConfig
from diffmark.pixel.tones import COUNT
from diffmark.pixel.writer import Writer, add
from diffmark.secret import to_hex
from diffmark.server.verify_page import PUBLIC_PHRASE
from diffmark.vista.paint import paint
from diffmark.vista.scenes import random_scene

FOLDER = Path(__file__).parent / "vectors"
FIRST = 8  # entries that are written of long lists
LARGEST = 640  # pixels a side that scenes are painted at
OPERATOR = bytes(range(32)).hex()
SECRET = "0123456789abcdef"
TABLE = {
    "negatives": 20_000,
    "tail": [[0.5, 1.5], [0.01, 9.0], [0.001, 14.0], [0.0001, 19.0]],
}  # for pages in tests
PICTURES = {  # name: key in hex (None: the public one), number of the scene, (width, height)
    "public.png": (None, 7, (256, 256)),
    "operator.png": (OPERATOR, 12, (200, 150)),
}


def of_key(key: OperatorKey) -> dict[str, Any]:
    """Everything that is derived from a key, by its first entries."""
    layout = Layout(PixelConfig(), key)
    return {
        "id": key.id,
        "numbers": {
            name: key.numbers(name, FIRST).tolist() for name in ("luma-1 permutation", "tone phases")
        },
        "bands": {
            band.name: {
                "coefficients": len(band.index),
                "first": [divmod(place, band.size) for place in band.index[:FIRST].tolist()],
                "owner": band.owner[:FIRST].tolist(),
                "sign": band.sign[:FIRST].astype(int).tolist(),
            }
            for band in layout.bands
        },
        "tones": {
            "frequencies": layout.tones.frequencies.tolist(),
            "phases": layout.tones.phases.round(9).tolist(),
        },
    }


def of_picture(image: Image.Image, codec: PixelCodec) -> dict[str, Any]:
    """A plain read."""
    reading = codec.read(image, search=False)
    return {
        "key_id": codec.key.id,
        "scores": reading.scores.round(6).tolist(),
        "margins": reading.margins.round(6).tolist(),
        "bits": to_hex((reading.margins > 0).astype(np.uint8)),
        "evidence": round(reading.evidence, 4),
    }


def scene(number: int, size: tuple[int, int]) -> Image.Image:
    """A painted scene, enlarged where the painter has an end."""
    painted = paint(random_scene(number), min(max(size), LARGEST))
    return Image.fromarray(painted).resize(size, Image.Resampling.LANCZOS)


def marked(image: Image.Image, codec: PixelCodec) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small pictures: what was reached is in the vectors
        return codec.embed(image, SECRET).image


def marked_in_chroma(image: Image.Image, codec: PixelCodec) -> Image.Image:
    """A picture that carries the tones and, of its bits, those in chroma alone: what is left of a weak mark."""
    bits = np.array([int(bit) for bit in f"{int(SECRET, 16):064b}"], np.uint8)
    residual = Writer(codec.layout).fit(image, bits).residual
    residual[0] = codec.layout.tones.waves(np.full(COUNT, 0.8), residual[0].shape)
    return add(image, residual)


def main() -> None:
    public = hashlib.sha256(PUBLIC_PHRASE.encode()).hexdigest()
    found: dict[str, Any] = {
        "keys": {public: of_key(PUBLIC_KEY), OPERATOR: of_key(OperatorKey.from_hex(OPERATOR))},
        "secret": SECRET,
        "pictures": {},
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (key, number, size) in PICTURES.items():
        codec = PixelCodec(key)
        image = marked(scene(number, size), codec)
        image.save(FOLDER / name, optimize=True)
        found["pictures"][name] = {"key": key or public, **of_picture(image, codec)}
    text = json.dumps(found, indent=1)
    text = re.sub(
        r"\[[^][{}]*\]", lambda flat: " ".join(flat[0].split()), text
    )  # a list of numbers is one line
    (FOLDER / "pixel.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
