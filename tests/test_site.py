"""The documentation as a site: built strictly, without dead links, without anything from another host."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import diffmark

ROOT = Path(__file__).parents[1]
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}
NOT_LOADED = {"canonical", "prev", "next", "alternate"}  # relations of <link> that name pages


class Page(HTMLParser):
    """The links, the names that can be linked to, and the files that a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = {name: value for name, value in attrs if value is not None}
        self.names |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADS and LOADS[tag] in found and found.get("rel") not in NOT_LOADED:
            self.loads.append(found[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site and its pages by path."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder, {path: Page(path.read_text()) for path in folder.rglob("*.html")}


def test_every_link_leads_to_a_page_and_a_heading(site):
    folder, pages = site
    dead = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for link in page.links + page.loads:
            address = urlsplit(link)
            if address.scheme or address.netloc or not (address.path or address.fragment):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            target = target / "index.html" if target.is_dir() else target
            lost = not target.is_file()
            if not lost and address.fragment and target.suffix == ".html":
                lost = unquote(address.fragment) not in pages[target].names
            if lost:
                dead.append(f"{path.relative_to(folder)}: {link}")
    assert len(pages) > 15
    assert not dead, dead


def test_nothing_is_loaded_from_another_host(site):
    folder, pages = site
    loads = {link for page in pages.values() for link in page.loads}
    assert not [link for link in loads if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc]
    for style in folder.rglob("*.css"):
        assert "url(http" not in style.read_text().replace("url(//", "url(http").replace('"', ""), style


def test_every_public_name_is_in_the_reference(site):
    folder, pages = site
    missing = {f"diffmark.{name}" for name in diffmark.__all__} - pages[folder / "api.html"].names
    assert not missing
    written = (ROOT / "docs" / "api.md").read_text()
    assert {line[4:] for line in written.splitlines() if line.startswith("::: diffmark.")} == {
        f"diffmark.{name}" for name in diffmark.__all__
    }


def test_a_dead_link_would_be_found(tmp_path):
    """The strict build itself fails where a page names another that does not exist."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: test\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "gone.md" in done.stderr
