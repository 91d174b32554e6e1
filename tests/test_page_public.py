"""The public verifier in a real browser: keyboard, screen readers (axe-core), a phone, five languages."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import segno
from browser import barriers, load_screenshots
from PIL import Image
from pixel_vectors import SECRET, scene

from diffmark.detection.joint import open_detector
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.secret import from_hex
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.public import Public
from diffmark.server.service import Service
from diffmark.server.words import LANGUAGES, words_in
from diffmark.verdict import PublicKeys, SigningKey, check
from diffmark.verdict.jws import compact
from diffmark.verdict.sheet import BORDER, LEVEL

shots = load_screenshots()
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    registry = Registry.open(f"sqlite:///{folder / 'registry.db'}", actor="root")
    plain = scene(1, (400, 300))
    marked = PixelCodec().embed(plain, from_hex(SECRET, 64)).image
    signing = SigningKey.create(folder / "key.pem")
    limits = Limits(public_per_minute=6000, public_burst=1000)
    service = Service(open_detector("pixel"), registry, limits, signing=signing)
    public = Public(
        service, folder / "feedback.jsonl", signing, "Example", fetch=lambda *_: shots.png(marked)
    )
    with shots.serving(create_app(service, public)) as address:
        yield {"address": address, "plain": plain, "marked": marked, "folder": folder, "signing": signing}


@pytest.fixture
def visit(site, chromium):
    """`visit(path)`: the page; it must end without errors of any kind."""
    opened = []

    def make(path="/", **options):
        page = chromium.new_context(accept_downloads=True, **options).new_page()
        page.set_default_timeout(60_000)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None
        )
        page.goto(site["address"] + path)
        opened.append((page, problems))
        return page

    yield make
    for page, problems in opened:
        assert problems == []
        page.context.close()


def give(page, image):
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": shots.png(image)})
    page.locator("#result[aria-busy=false]").wait_for()


@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_finds_nothing_and_every_word_is_of_the_language(visit, site, axe, language):
    page = visit(locale=language)
    words = words_in(language).texts
    assert page.get_by_role("heading", level=1).inner_text() == words["heading"]
    assert page.locator(".address button").evaluate("b => b.offsetHeight") < 60  # one line of words
    assert barriers(page, axe) == []
    give(page, site["marked"])
    assert page.locator("#headline").inner_text() == words["marked_headline"]
    assert words["watermark_found"] in page.locator("#bases").inner_text()
    page.locator("summary").click()
    assert barriers(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_a_phone_and_nothing_is_cut_off(visit, site, axe, scheme):
    page = visit(color_scheme=scheme, **PHONE)
    give(page, site["plain"])
    page.locator("summary").click()
    assert barriers(page, axe) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_axe_finds_nothing_on_the_other_pages(visit, axe):
    for path in ("/docs", "/auditor"):
        assert barriers(visit(path), axe) == [], path


def test_the_keyboard_alone_reaches_an_answer(visit, site):
    page = visit()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "address":
            break
    page.keyboard.type("https://example.org/a.png")
    page.keyboard.press("Enter")
    page.locator("#result[aria-busy=false]").wait_for()
    headline = words_in("en").texts["marked_headline"]
    assert page.locator("#headline").inner_text() == page.get_by_role("status").inner_text() == headline
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"choose", "here", "save", "SUMMARY"} <= seen


def test_the_signed_result_is_saved_and_printed(visit, site, tmp_path):
    page = visit()
    give(page, site["marked"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the signed result").click()
    download.value.save_as(tmp_path / "verdict.json")
    keys = PublicKeys(site["signing"].public)
    statement, _ = check((tmp_path / "verdict.json").read_text(), keys, shots.png(site["marked"]))
    assert statement.verdict == "marked"
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Page to print").click()
    code = opened.value.get_by_role("img", name="QR code")
    code.wait_for()
    signature = compact((tmp_path / "verdict.json").read_text())
    want = np.array(list(segno.make(signature, error=LEVEL, micro=False).matrix_iter(border=BORDER)))
    shown = np.array(Image.open(io.BytesIO(code.screenshot())).convert("L"))
    places = ((np.arange(len(want)) + 0.5) * min(shown.shape) / len(want)).astype(int)  # module by module
    assert np.array_equal(shown[np.ix_(places, places)] < 128, want == 1)
    assert statement.sha256 in opened.value.content()
    assert opened.value.evaluate("document.documentElement.lang") == "en"


def test_reading_on_the_device_sends_nothing(visit, site):
    page = visit()
    sent = []
    page.on("request", lambda request: sent.append(request.method))
    page.get_by_label("Read on this device only").check()
    give(page, site["marked"])
    assert page.locator("#headline").inner_text() == words_in("en").texts["device_marked"]
    assert "POST" not in sent


def test_feedback_and_the_switch_of_languages(visit, site):
    page = visit()
    give(page, site["plain"])
    page.locator("summary").click()
    page.get_by_label("No", exact=True).check()
    page.get_by_label("What should we know?").fill("I took this photograph")
    page.get_by_role("button", name="Send feedback").click()
    page.get_by_text("Your feedback was kept").first.wait_for()
    rows = [json.loads(line) for line in (site["folder"] / "feedback.jsonl").read_text().splitlines()]
    assert (rows[-1]["text"], rows[-1]["agrees"]) == ("I took this photograph", False)
    page.get_by_role("link", name="Deutsch").click()
    page.get_by_role("heading", name=words_in("de").texts["heading"]).wait_for()
