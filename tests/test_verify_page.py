"""docs/verify.html in a real browser: one file, opened from disk, that reads pictures and connects to nothing."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image
from pixel_vectors import OPERATOR, SECRET, TABLE, marked, scene

from diffmark.pixel.codec import PixelCodec
from diffmark.server.verify_page import PAGE, calibration, page

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""
GIVE = """([picture, kind]) => {
  const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "given.png", { type: "image/png" }));
  document.body.dispatchEvent(kind === "drop"
    ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: data, bubbles: true }));
}"""


@pytest.fixture
def visit(chromium, tmp_path):
    """`visit()`: the page with a table, from a file; it must end without errors and without a request."""
    opened = []

    def make(table=TABLE, expected=(), **options):
        path = tmp_path / "verify.html"
        path.write_text(page(table))
        tab = chromium.new_context(**options).new_page()
        tab.set_default_timeout(120_000)
        problems: list[str] = []
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda line: problems.append(line.text))
        tab.on(
            "request",
            lambda request: (
                None if request.url.startswith(("file:", "blob:", "data:")) else problems.append(request.url)
            ),
        )
        tab.add_init_script(WATCH)
        tab.goto(path.as_uri())
        opened.append((tab, problems, expected))
        return tab

    yield make
    for tab, problems, expected in opened:
        assert tab.evaluate("window.violations") == []
        assert [text for text in problems if not any(part in text for part in expected)] == []
        tab.context.close()


@pytest.fixture(scope="module")
def original():
    """A picture marked with the public key."""
    return marked(scene(40, (480, 360)), PixelCodec())


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def choose(tab, data, name="photo.png"):
    """Choose a file and wait for what is said of it."""
    tab.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": data})
    tab.locator("#result[aria-busy=false]").wait_for()
    return tab.locator("#result").inner_text()


def test_the_committed_page_is_current():
    assert PAGE.read_text() == page(calibration()), "run `python -m diffmark.server.verify_page`"


def test_a_rotated_picture_is_read_and_the_view_told(visit, original):
    tab = visit()
    text = choose(tab, png(original.rotate(20, Image.Resampling.BICUBIC, expand=True)))
    assert "This picture carries a mark of the public key." in text
    assert "at most 1 in 10,000 had as much evidence" in text
    assert SECRET in text
    assert PixelCodec().key.id in text
    assert "rotated by 20 degrees counter-clockwise" in text
    assert "carries a mark" in tab.get_by_role("status").inner_text()
    tab.get_by_text("The bits, one by one").click()
    assert tab.locator("#bits span").count() == 64
    assert SECRET in tab.locator("#bits").get_attribute("aria-label")


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_pictures_are_dropped_and_pasted(visit, original, kind):
    tab = visit()
    tab.evaluate(GIVE, [base64.b64encode(png(original)).decode(), kind])
    tab.get_by_role("heading", name="This picture carries a mark of the public key.").wait_for()
    assert "given.png" in tab.locator("#name").inner_text()


def test_a_picture_without_a_mark_and_files_that_are_no_pictures(visit):
    tab = visit()
    text = choose(tab, png(scene(44, (320, 240))))
    assert "No mark of the public key was found." in text
    assert "does not prove" in text
    assert "View" not in text
    text = choose(tab, b"not an image")
    assert "This picture could not be read." in text
    assert "damaged, not an image" in text
    assert not tab.locator("#found").is_visible()


def test_pictures_that_cannot_be_read_or_marked_are_told_in_clear_words(visit):
    tab = visit()
    text = choose(tab, png(Image.new("RGB", (200, 150), (90, 120, 30))))
    assert "No mark of the public key was found." in text
    assert "one flat colour" in text
    assert "No mark of the public key was found." in choose(tab, png(Image.new("RGB", (1, 1))))
    text = choose(tab, png(Image.new("L", (12_000, 9_000), 90)))
    assert "This picture could not be read." in text
    assert "100 megapixels" in text or "larger than this browser can open" in text


def test_an_operators_key_by_keyboard_alone(visit):
    tab = visit()
    tab.on("filechooser", lambda _: None)  # dialogs are intercepted from here on: later may be too late
    for _ in range(3):  # link to the content, button, keys
        tab.keyboard.press("Tab")
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert tab.evaluate("document.activeElement.id") == "public"
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.id") == "key"
    tab.keyboard.type("abc")
    tab.keyboard.press("Enter")
    assert "these are 3" in tab.get_by_role("alert").inner_text()
    tab.keyboard.press("ControlOrMeta+a")
    tab.keyboard.type(OPERATOR)
    for _ in range(2):
        tab.keyboard.press("Shift+Tab")
    with tab.expect_file_chooser() as chooser:
        tab.keyboard.press("Enter")
    image = marked(scene(12, (256, 256)), PixelCodec(OPERATOR))
    chooser.value.set_files({"name": "a.png", "mimeType": "image/png", "buffer": png(image)})
    key_id = PixelCodec(OPERATOR).key.id
    tab.get_by_role("heading", name=f"This picture carries a mark of the key {key_id}.").wait_for()
    assert OPERATOR not in tab.locator("body").inner_text()
    assert "stored nowhere" in tab.locator("#key-note").inner_text()


def test_the_page_can_connect_to_nothing(visit):
    tab = visit(expected=["Content Security Policy"])
    policy = tab.locator("meta[http-equiv='Content-Security-Policy']").get_attribute("content")
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert "not uploaded" in tab.locator("main").inner_text()
    assert tab.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"
    assert tab.evaluate("window.violations.splice(0)") == ["connect-src"]


def test_on_a_phone_nothing_sticks_out(visit, original):
    tab = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    tab.get_by_label("An operator's key").tap()
    tab.get_by_label("The public key, for trying out").tap()
    choose(tab, png(original))
    tab.get_by_text("The bits, one by one").tap()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    for target in [*tab.get_by_role("button").all(), *tab.locator(".option").all()]:
        assert target.bounding_box()["height"] >= 44
