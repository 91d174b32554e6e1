"""The committed test vectors of the pixel layer are what this Python gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from pixel_vectors import FOLDER, PICTURES, SECRET, of_key, of_picture

from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.keys import OperatorKey

VECTORS = json.loads((FOLDER / "pixel.json").read_text())
AGAIN = "run tests/pixel_vectors.py if the layer was changed on purpose"


@pytest.mark.parametrize("key", VECTORS["keys"])
def test_keys_give_the_numbers_bands_and_tones_of_the_vectors(key):
    found = json.loads(json.dumps(of_key(OperatorKey.from_hex(key))))
    phases = found["tones"].pop("phases")
    expected = VECTORS["keys"][key] | {"tones": dict(VECTORS["keys"][key]["tones"])}
    assert phases == pytest.approx(expected["tones"].pop("phases"), abs=1e-8), AGAIN
    assert found == expected, AGAIN


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_have_the_scores_of_the_vectors(name):
    expected = VECTORS["pictures"][name]
    with Image.open(FOLDER / name) as image:
        found = of_picture(image, PixelCodec(expected["key"]))
    assert np.abs(np.array(found["scores"]) - expected["scores"]).max() < 1e-3, AGAIN
    assert found["bits"] == expected["bits"] == SECRET
    assert found["evidence"] == pytest.approx(expected["evidence"], rel=1e-4)


def test_the_vectors_are_small():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 300_000
