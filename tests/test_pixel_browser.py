"""The reader in JavaScript, in a real browser: every score is Python's, and views are found alike."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from pixel_vectors import FIRST, FOLDER, OPERATOR, SECRET, marked, marked_in_chroma, scene

from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.search import View
from diffmark.secret import to_hex
from diffmark.server.verify_page import CONSTANTS, STATIC, calibration, constants

ADDRESS = "http://reader.test"  # plain HTTP: no crypto.subtle; nothing is asked for over the network
VECTORS = json.loads((FOLDER / "pixel.json").read_text())
READ = """async ([picture, type, key, options]) => {
  const { PixelReader } = await import("/pixel.js");
  const { pixelsOf } = await import("/pixel-picture.js");
  const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
  const pixels = await pixelsOf(new Blob([bytes], { type }));
  const found = new PixelReader(key).read(pixels, options);
  return { ...found, scores: found.scores.map((band) => [...band]), margins: [...found.margins] };
}"""
OF_KEY = """async ([key, first]) => {
  const { KEPT, Layout } = await import("/pixel-bands.js");
  const { OperatorKey } = await import("/pixel-keys.js");
  const { Tones } = await import("/pixel-search.js");
  const made = new OperatorKey(key);
  const of = (band) => ({
    coefficients: band.index.length,
    first: [...band.index.subarray(0, first)].map((place) => [Math.floor(place / KEPT), place % KEPT]),
    owner: [...band.owner.subarray(0, first)],
    sign: [...band.sign.subarray(0, first)],
  });
  return {
    id: made.id,
    numbers: Object.fromEntries(["luma-1 permutation", "tone phases"].map((name) => (
      [name, [...made.numbers(name, first)]]))),
    bands: Object.fromEntries(new Layout(made).bands.map((band) => [band.name, of(band)])),
    tones: { ...new Tones(made) },
  };
}"""

REFUSED = """async (key) => {
  const { parseKey } = await import("/pixel-keys.js");
  try { parseKey(key); } catch (error) { return error.message; }
}"""


@pytest.fixture(scope="module")
def page(chromium):
    """An empty page that can import the reader's modules."""
    page = chromium.new_page()
    page.set_default_timeout(120_000)

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        if name:
            route.fulfill(body=(STATIC / name).read_text(), content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    page.route(f"{ADDRESS}/**", answer)
    page.goto(f"{ADDRESS}/")
    yield page
    page.close()


def read(page, image, key=None, search=False, **save):
    """What the browser reads; `save` are Pillow's options, PNG by default."""
    buffer = io.BytesIO()
    image.save(buffer, **{"format": "PNG", **save})
    kind = f"image/{save.get('format', 'PNG').lower()}"
    return page.evaluate(READ, [base64.b64encode(buffer.getvalue()).decode(), kind, key, {"search": search}])


def difference(found, reading):
    """The largest difference of any score."""
    return np.abs(np.array(found["scores"]) - reading.scores).max()


def test_the_constants_are_those_of_python():
    assert CONSTANTS.read_text() == constants(calibration()), "run `python -m diffmark.server.verify_page`"


@pytest.mark.parametrize("key", VECTORS["keys"])
def test_keys_give_the_numbers_bands_and_tones_of_the_vectors(page, key):
    found = page.evaluate(OF_KEY, [key, FIRST])
    expected = json.loads(json.dumps(VECTORS["keys"][key]))
    assert found["tones"].pop("phases") == pytest.approx(expected["tones"].pop("phases"), abs=1e-8)
    assert found == expected


@pytest.mark.parametrize("name", VECTORS["pictures"])
def test_pictures_have_the_scores_of_the_vectors(page, name):
    expected = VECTORS["pictures"][name]
    with Image.open(FOLDER / name) as image:
        found = read(page, image, expected["key"])
    assert np.abs(np.array(found["scores"]) - expected["scores"]).max() < 1e-3
    assert np.abs(np.array(found["margins"]) - expected["margins"]).max() < 1e-2
    assert found["bits"] == expected["bits"]
    assert found["evidence"] == pytest.approx(expected["evidence"], rel=1e-4)


@pytest.mark.parametrize("size", [(256, 256), (512, 512), (640, 480), (1500, 1000), (90, 700), (64, 64)])
def test_scores_are_pythons_at_every_size(page, size):
    codec = PixelCodec()
    for image in (scene(31, size), marked(scene(31, size), codec)):
        assert difference(read(page, image), codec.read(image, search=False)) < 1e-3


def test_transparent_and_turned_files_are_read_as_python_reads_them(page):
    codec = PixelCodec(OPERATOR)
    image = marked(scene(5, (400, 300)), codec)
    clear = image.convert("RGBA")
    ImageDraw.Draw(clear).ellipse((20, 20, 120, 120), fill=(0, 0, 0, 0))
    found = read(page, clear, OPERATOR)
    assert difference(found, codec.read(clear, search=False)) < 1e-3
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright
    turned = image.transpose(Image.Transpose.ROTATE_90)
    found = read(page, turned, OPERATOR, format="JPEG", quality=95, exif=exif)
    assert (found["bits"], found["view"]) == (SECRET, None)


def changed(image):
    """A marked picture as it may come back."""
    width, height = image.size
    framed = Image.new("RGB", (width * 3 // 2, height * 3 // 2), "grey")
    framed.paste(image, (width // 5, height // 6))
    cubic = Image.Resampling.BICUBIC
    return {
        "rotated": image.rotate(20, cubic, expand=True),
        "mirrored": image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "upside down": image.transpose(Image.Transpose.ROTATE_180),
        "cropped": image.crop((width // 10, height // 8, width * 9 // 10, height * 9 // 10)),
        "framed": framed,
    }


@pytest.fixture(scope="module")
def original():
    """A marked picture, 640 x 480."""
    return marked(scene(40, (640, 480)), PixelCodec())


@pytest.mark.parametrize("change", changed(Image.new("RGB", (8, 8))))
def test_changed_pictures_are_found_in_the_view_that_python_finds(page, original, change):
    image = changed(original)[change]
    expected = PixelCodec().read(image)
    found = read(page, image, search=True)
    assert expected.view is not None
    assert found["bits"] == to_hex((expected.margins > 0).astype(np.uint8)) == SECRET
    assert found["evidence"] == pytest.approx(expected.evidence, rel=0.02)
    assert np.array(found["view"]["matrix"]) == pytest.approx(np.array(expected.view.matrix), abs=2e-3)
    assert np.array(found["view"]["offset"]) == pytest.approx(np.array(expected.view.offset), abs=2e-3)


def test_a_view_is_kept_for_its_chroma_as_python_does(page):
    image = marked_in_chroma(scene(40, (640, 480)), PixelCodec()).rotate(20, Image.Resampling.BICUBIC)
    expected = PixelCodec().read(image)
    found = read(page, image, search=True)
    assert expected.view is not None
    assert found["bits"] == to_hex((expected.margins > 0).astype(np.uint8))
    assert bin(int(found["bits"], 16) ^ int(SECRET, 16)).count("1") <= 2  # chance is 32
    assert found["evidence"] == pytest.approx(expected.evidence, rel=0.02)


def test_a_large_picture_that_was_turned_and_cropped_is_found(page):
    image = marked(scene(40, (1500, 1000)), PixelCodec())
    found = read(page, image.rotate(-33, Image.Resampling.BICUBIC).crop((300, 200, 1200, 800)), search=True)
    assert found["bits"] == SECRET
    matrix = np.array(found["view"]["matrix"])
    assert abs(np.linalg.det(matrix)) == pytest.approx(1500 * 1000 / (900 * 600), rel=0.01)


def test_pictures_without_a_mark_and_with_the_wrong_key_show_nothing(page):
    image = scene(44, (320, 320))
    assert read(page, image, search=True)["evidence"] < 20
    assert read(page, marked(image, PixelCodec()), OPERATOR, search=True)["evidence"] < 20


def test_readings_in_words(page):
    say = "async ([name, ...given]) => (await import('/pixel-words.js'))[name](...given)"
    assert page.evaluate(say, ["viewInWords", None]).startswith("as it came")
    cos, sin = np.cos(np.radians(20)), np.sin(np.radians(20))
    view = {"matrix": [[-1.2 * cos, 1.2 * sin], [1.2 * sin, 1.2 * cos]], "offset": [0, 0]}
    assert View.of(np.array(view["matrix"]), np.zeros(2)).mirrored
    words = page.evaluate(say, ["viewInWords", view])
    assert words.startswith("mirrored, rotated by 20 degrees ")
    assert words.endswith("cropped: about 69% of the marked picture is left")
    table = {"negatives": 20_000, "tail": [[0.5, 1], [0.01, 6], [0.001, 9], [0.0001, 12]]}
    reading = {"width": 300, "height": 200, "flat": False}
    for nats, kind, part in [
        (
            13,
            "named",
            "Of the 20,000 pictures without a mark that this reader was tried on, at most 1 in 10,000",
        ),
        (10, "named", "at most 1 in 1,000"),
        (9, "stranger", "at most 1 in 100"),
        (3, "none", "at least 1 in 100"),
        (0, "none", "at least 50 in 100"),
    ]:
        said = page.evaluate(say, ["blindVerdict", {**reading, "evidence": nats}, "the public key", table])
        assert (said["kind"], part in said["sentences"][0]) == (kind, True)
    for found, part in [
        ({"height": 40}, "only 300 × 40 pixels; marks are written into pictures of at least 64"),
        ({"flat": True}, "one flat colour"),
    ]:
        said = page.evaluate(
            say, ["blindVerdict", {**reading, "evidence": 0, **found}, "the public key", table]
        )
        assert part in " ".join(said["sentences"])


def test_wrong_keys_are_refused(page):
    assert "64 hex digits; these are 3" in page.evaluate(REFUSED, "abc")
    assert "hex digits only" in page.evaluate(REFUSED, "g" * 64)
    assert page.evaluate(REFUSED, f" {OPERATOR.upper()}\n") is None
