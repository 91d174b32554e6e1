"""Pictures of the auditor's page for the docs, taken in Chromium from a running service.

python benchmarks/page_screenshots.py      # writes docs/images/page-*.webp; needs playwright and chromium
"""

from __future__ import annotations

import io
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image

from diffmark.detection.latent import Detector
from diffmark.mark.image import embed
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token
from diffmark.vista.paint import painted_scenes

IMAGES = Path(__file__).parents[1] / "docs" / "images"
FIRST = 61_200  # of the held-out scenes
KEYS = 120_000
WAIT = 120_000  # milliseconds; a busy machine takes its time


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The application on a free port of this machine; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the service did not start")
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium; nothing is downloaded."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root, and in containers
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()


def sign_in(page: Any, address: str, token: str) -> None:
    page.goto(address)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("button", name="choose files").wait_for(timeout=WAIT)


def upload(page: Any, *files: tuple[str, Image.Image]) -> None:
    """Choose files by name and picture, and wait for their verdicts."""
    from playwright.sync_api import expect

    page.set_input_files("#files", [{"name": n, "mimeType": "image/png", "buffer": png(i)} for n, i in files])
    expect(page.locator(".card[aria-busy=true]")).to_have_count(0, timeout=WAIT)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def main() -> None:
    detector = Detector.from_pretrained("vista-final")
    photo, plain = painted_scenes(2, FIRST)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        registry = Registry.open(f"sqlite:///{folder}/registry.db", actor="root")
        registry.import_keys(np.random.default_rng(1).integers(0, 2**64, KEYS, np.uint64))
        key = registry.issue("user-42")
        _, token = grant_token(registry, "ann", "auditor")
        marked = embed(plain, detector.codec, detector.vae, key.secret)
        composed = photo.copy()
        composed.paste(marked.crop((0, 0, 150, 256)))
        with serving(create_app(Service(detector, registry))) as address:
            wide = browser.new_page(viewport={"width": 1100, "height": 820})
            wide.goto(address)
            sign_in(wide, address, token)
            wide.get_by_label("Reason").fill("complaint 17")
            upload(wide, ("shared.png", marked))
            wide.get_by_label("Show where the mark is").check()
            wide.get_by_text("Candidates and bits").click()
            shoot(wide, "verdict", whole=True)
            wide.get_by_role("button", name="Clear").click()
            upload(wide, ("forest.png", photo))
            shoot(wide, "no-match")
            wide.get_by_role("button", name="Clear").click()
            upload(wide, ("collage.png", composed))
            wide.get_by_label("Show where the mark is").check()
            shoot(wide, "collage")
            narrow = browser.new_page(
                viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True
            )
            sign_in(narrow, address, token)
            upload(narrow, ("shared.png", marked))
            shoot(narrow, "phone", whole=True)


def shoot(page: Any, name: str, whole: bool = False) -> None:
    """docs/images/page-NAME.webp; `whole` shows the page beyond the window."""
    with Image.open(io.BytesIO(page.screenshot(full_page=whole))) as image:
        IMAGES.mkdir(parents=True, exist_ok=True)
        image.convert("RGB").save(IMAGES / f"page-{name}.webp", quality=80, method=6)
    print(IMAGES / f"page-{name}.webp")


if __name__ == "__main__":
    main()
