"""Pictures of the public verifier and of the report for the docs, taken in Chromium.

python benchmarks/public_screenshots.py      # writes docs/images/page-public*.webp; needs playwright and chromium
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from page_screenshots import chromium, png, serving, shoot

from diffmark.detection.joint import open_detector
from diffmark.pixel.codec import PixelCodec
from diffmark.registry import Registry
from diffmark.reporting import collect, page
from diffmark.server.app import create_app
from diffmark.server.public import Public
from diffmark.server.service import Service
from diffmark.verdict import SigningKey
from diffmark.vista.paint import painted_scenes

RESULTS = Path(__file__).parents[1] / "results"
PHONE = {"width": 390, "height": 844}


def main() -> None:
    (plain,) = painted_scenes(1, 61_200)
    secret = np.random.default_rng(1).integers(0, 2, 64).astype(np.uint8)
    marked = PixelCodec().embed(plain.resize((512, 512)), secret).image
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        registry = Registry.open(f"sqlite:///{folder}/registry.db", actor="root")
        key = SigningKey.create(folder / "key.pem")
        service = Service(open_detector("pixel"), registry, signing=key)
        with serving(create_app(service, Public(service, folder / "feedback", key, "Example"))) as address:
            wide = browser.new_page(viewport={"width": 1100, "height": 820}, locale="en")
            verify(wide, address, marked)
            shoot(wide, "public", whole=True)
            dark = browser.new_page(viewport=PHONE, color_scheme="dark", locale="de", has_touch=True)
            verify(dark, address, plain)
            shoot(dark, "public-phone", whole=True)
        (folder / "report.html").write_text(page(collect(RESULTS, "eu-code")))
        for scheme, size in (("light", {"width": 1100, "height": 820}), ("dark", PHONE)):
            report = browser.new_page(viewport=size, color_scheme=scheme)
            report.goto((folder / "report.html").as_uri())
            shoot(report, f"report-{scheme}")


def verify(page: Any, address: str, image: Any) -> None:
    page.goto(address)
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(image)})
    page.locator("#result[aria-busy=false]").wait_for(timeout=120_000)


if __name__ == "__main__":
    main()
