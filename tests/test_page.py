"""The auditor's page in a real browser, against a real service with the shipped codec."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from browser import load_screenshots
from PIL import Image
from pixel_vectors import OPERATOR, SECRET, TABLE, marked, scene

from diffmark.detection.joint import open_detector
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token
from diffmark.server.verify_page import constants
from diffmark.vista.paint import painted_scenes

shots = load_screenshots()
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""
DROP = """([files, kind]) => {
  const data = new DataTransfer();
  for (const [name, text] of files) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    data.items.add(new File([bytes], name, { type: "image/png" }));
  }
  const event = kind === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
  document.getElementById("drop").dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A service with a thousand keys, tokens of each role, a marked picture and a plain one."""
    folder = tmp_path_factory.mktemp("site")
    detector = open_detector()
    registry = Registry.open(f"sqlite:///{folder / 'registry.db'}", actor="root")
    registry.import_keys(np.random.default_rng(3).integers(0, 2**64, 1203, np.uint64))
    key = registry.issue("user-42")
    plain, photo = painted_scenes(2, first=61_200)
    marked = PixelCodec().embed(plain, key.secret).image
    tokens = {
        role: grant_token(registry, f"a-{role}", role)[1] for role in ("auditor", "operator", "investigator")
    }
    limits = Limits(per_minute=6000, burst=1000, upload_bytes=400_000)
    with shots.serving(create_app(Service(detector, registry, limits))) as address:
        yield {"address": address, "tokens": tokens, "marked": marked, "photo": photo, "registry": registry}


@pytest.fixture
def visit(site, chromium):
    """`visit(role)`: a page where that role is signed in; it must end without errors of any kind."""
    opened = []

    def make(role="auditor", expected=(), **options):
        page = chromium.new_context(accept_downloads=True, **options).new_page()
        page.set_default_timeout(60_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None
        )
        page.add_init_script(WATCH)
        if role:
            shots.sign_in(page, site["address"], site["tokens"][role])
        else:
            page.goto(site["address"])
        opened.append((page, problems, expected))
        return page

    yield make
    for page, problems, expected in opened:
        assert page.evaluate("window.violations") == []
        assert [text for text in problems if not any(part in text for part in expected)] == []
        page.context.close()


def give(page, *files, kind="drop"):
    """Drop or paste pictures by name."""
    page.evaluate(DROP, [[[n, base64.b64encode(shots.png(i)).decode()] for n, i in files], kind])


def test_a_dropped_marked_image_shows_the_name_and_where_the_mark_is(visit, site):
    page = visit()
    page.get_by_label("Reason").fill("complaint 17")
    composed = site["photo"].copy()
    composed.paste(site["marked"].crop((0, 0, 128, 256)))
    give(page, ("shared.png", composed))
    page.get_by_role("heading", name="This image carries the mark issued to user-42.").wait_for()
    text = page.locator(".card").inner_text()
    assert re.search(r"chance of a false match among 1,204 keys is \d in 10\S+\.", text)
    assert "in a part of the picture only" in text
    assert "user-42" in page.get_by_role("status").inner_text()
    page.get_by_label("Show where the mark is").check()
    data = page.evaluate("""() => {
      const canvas = document.querySelector(".frame canvas");
      return Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data);
    }""")
    left, right = np.hsplit(np.array(data).reshape(32, 32, 4)[..., 3], 2)
    assert left.mean() > 2 * right.mean()
    page.get_by_text("Candidates and bits").click()
    rows = page.locator(".candidates tbody tr")
    assert (rows.count(), "user-42" in rows.first.inner_text()) == (5, True)
    assert page.locator(".bits span").count() == 64
    assert "bits that were read" in page.locator(".bits").get_attribute("aria-label")
    page.locator("#history summary").click()
    page.locator("#entries tr").first.wait_for()
    assert "complaint 17" in page.locator("#entries").inner_text()


def test_a_plain_image_shows_no_match_and_what_that_does_not_prove(visit, site):
    page = visit()
    give(page, ("photo.png", site["photo"].resize((128, 96))), kind="paste")
    page.get_by_role("heading", name="No mark found.").wait_for()
    text = page.locator(".card").inner_text()
    for words in (
        "does not prove",
        "Strong blur and regeneration by a model",
        "128 × 96 pixels",
    ):
        assert words in text
    assert not page.get_by_label("Show where the mark is").is_visible()


def test_a_wrong_token_is_refused_and_a_right_one_is_forgotten_on_signing_out(visit, site):
    page = visit(None, expected=["401"])
    page.get_by_label("Token").fill("dmk_wrong")
    page.keyboard.press("Enter")
    page.get_by_text("This token is not valid").wait_for()
    assert page.get_by_role("button", name="choose files").count() == 0
    assert page.evaluate("sessionStorage.length") == 0
    shots.sign_in(page, site["address"], site["tokens"]["auditor"])
    page.reload()
    page.get_by_role("button", name="choose files").wait_for()
    assert page.evaluate("localStorage.length + document.cookie.length") == 0
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_several_images_bad_ones_among_them_and_the_reports(visit, site, tmp_path):
    page = visit(expected=["422"])
    page.get_by_label("Reason").fill("complaint 17")
    give(page, ("a.png", site["marked"]), ("b.png", site["photo"]))
    noise = np.random.default_rng(0).integers(0, 255, (400, 400, 3)).astype(np.uint8)
    give(page, ("huge.png", Image.fromarray(noise)))
    page.set_input_files("#files", {"name": "c.png", "mimeType": "image/png", "buffer": b"not an image"})
    shots.upload(page)
    said = dict(
        zip(page.locator(".name").all_inner_texts(), page.locator(".said").all_inner_texts(), strict=True)
    )
    said = {name.split(",")[0]: text for name, text in said.items()}
    assert "issued to user-42" in said["a.png"]
    assert "No mark found" in said["b.png"]
    assert "the service takes 400 kB" in said["huge.png"]
    assert "c.png: not an image" in said["c.png"]
    assert "Try again" in said["c.png"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    download.value.save_as(tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert {entry["file"]: entry["answer"]["principal"] for entry in report["results"]} == {
        "a.png": "user-42",
        "b.png": None,
    }
    assert all(re.fullmatch("[0-9a-f]{64}", entry["sha256"]) for entry in report["results"])
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.get_by_text("Examined by a-auditor with DiffMark").is_visible()
    assert page.locator(".named .candidates").is_visible()
    for words in (
        "Reason: complaint 17",
        report["results"][0]["sha256"],
        "pixel, operator key",
    ):  # all of it, unopened
        assert page.get_by_text(words).first.is_visible()
    assert not page.get_by_role("button", name="Clear").is_visible()
    page.emulate_media(media="screen")
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".card").count() == 0


def test_the_keyboard_alone_is_enough(visit, site):
    page = visit(None)
    page.on("filechooser", lambda _: None)  # dialogs are intercepted from here on: later may be too late
    page.keyboard.type(site["tokens"]["auditor"])  # the field has the focus
    page.keyboard.press("Enter")
    page.get_by_role("button", name="choose files").wait_for()
    assert page.evaluate("document.activeElement.id") == "choose"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Space")
    chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": shots.png(site["marked"])})
    page.get_by_role("heading", name="issued to user-42").wait_for()
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
    assert seen == ["here", "reason", "print", "export", "clear", "INPUT", "SUMMARY", "SUMMARY"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert page.locator(".frame canvas").is_visible()


def test_on_a_phone_nothing_sticks_out(visit, site):
    page = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    give(page, ("a.png", site["marked"]))
    page.get_by_role("heading", name="issued to user-42").wait_for()
    page.get_by_text("Candidates and bits").tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for box in (button.bounding_box() for button in page.get_by_role("button").all()):
        assert box is None or box["height"] >= 44


def test_other_roles_get_what_they_may(visit, site):
    page = visit("operator")
    give(page, ("a.png", site["marked"]))
    page.get_by_role("heading", name="This image seems to carry a mark.").wait_for()
    assert "user-42" not in page.locator("main").inner_text()
    page = visit(None)
    page.get_by_label("Token").fill(site["tokens"]["investigator"])
    page.keyboard.press("Enter")
    page.get_by_text("An investigator's token reads the history").wait_for()
    give(page, ("a.png", site["marked"]))
    assert page.locator(".card").count() == 0


def test_verdicts_and_chances_in_words(visit):
    page = visit(None)
    answers = [
        {"answer": {"principal": None, "keys": keys, "family_wise": p}, "found": {"verdict": verdict}}
        for keys, p, verdict in [(1, 1.0, "not marked"), (1204, 1e-4, "marked")]
    ]
    said = page.evaluate("async (v) => (await import('/page/words.js')).verdict(v)", answers[0])
    assert said["headline"] == "No mark found."
    assert said["sentences"][0] == "The nearest of 1 key is no closer than chance would bring it."
    said = page.evaluate("async (v) => (await import('/page/words.js')).verdict(v)", answers[1])
    assert said["headline"] == "No key matches."
    assert "chance brings one so close in 1 in 10,000 cases" in said["sentences"][0]
    values = [3.1e-11, 9.7e-8, 0.0021, 0.5, 1, 0, 2e-7, 1e-6]
    words = page.evaluate(
        "async (v) => { const w = await import('/page/words.js'); return v.map(w.probability) }", values
    )
    expected = ["3 in 10¹¹", "1 in 10⁷", "2 in 1,000", "50 in 100", "almost certain", "less than 1 in 10³⁰⁰"]
    assert words == [*expected, "2 in 10⁷", "1 in 1,000,000"]


@pytest.fixture
def read_here(visit):
    """`read_here(...)`: a page that reads on the device with a table of its own, and what it sent."""

    def make(**options):
        page = visit(**options)
        page.route(
            "**/page/pixel-constants.js",
            lambda route: route.fulfill(body=constants(TABLE), content_type="text/javascript"),
        )
        page.reload()
        page.get_by_role("button", name="choose files").wait_for()
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url) if request.method != "GET" else None)
        page.get_by_label("Read on this device only").check()
        return page, sent

    return make


def test_a_picture_is_read_on_the_device_without_an_upload(read_here):
    page, sent = read_here()
    assert not page.get_by_label("Reason").is_visible()
    image = marked(scene(40, (480, 360)), PixelCodec())
    give(page, ("turned.png", image.rotate(20, Image.Resampling.BICUBIC, expand=True)))
    page.get_by_role("heading", name="This picture carries a mark of the public key.").wait_for()
    page.get_by_text("Bits and evidence").click()
    text = page.locator(".card").inner_text()
    for words in (SECRET, "not uploaded", "rotated by 20 degrees counter-clockwise", PixelCodec().key.id):
        assert words in text
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    (saved,) = json.loads(download.value.path().read_text())["results"]
    assert (saved["read"], saved["bits"]) == ("on this device", SECRET)
    assert saved["verdict"] == "This picture carries a mark of the public key."
    give(page, ("plain.png", scene(44, (320, 240))))
    page.get_by_role("heading", name="No mark of the public key was found.").wait_for()
    page.set_input_files("#files", {"name": "a.png", "mimeType": "image/png", "buffer": b"not an image"})
    page.get_by_role("heading", name="This image could not be examined.").wait_for()
    assert "not an image" in page.locator(".card").first.inner_text()
    assert sent == []


def test_a_pasted_key_reads_on_the_device_and_is_forgotten(read_here):
    page, sent = read_here()
    image = marked(scene(12, (256, 256)), PixelCodec(OPERATOR))
    page.get_by_label("An operator's key").check()
    page.get_by_label("Key (64 hex digits)").fill("abc")
    give(page, ("a.png", image))
    assert "these are 3" in page.locator("#key-error").inner_text()
    assert page.locator(".card").count() == 0
    page.get_by_label("Key (64 hex digits)").fill(OPERATOR)
    give(page, ("a.png", image))
    page.get_by_role(
        "heading", name=f"This picture carries a mark of the key {PixelCodec(OPERATOR).key.id}."
    ).wait_for()
    assert OPERATOR not in page.locator("body").inner_text()
    page.get_by_role("button", name="Sign out").click()
    assert page.locator("#key").input_value() == ""
    assert sent == []
