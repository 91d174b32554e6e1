"""Pages and figures of the site that lie outside docs/: README is its first page, results/ has the figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LOG.md": "log.md",
}
LINK = re.compile(r"(?<=\]\()([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root, and the figures that any page shows."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    texts = [(ROOT / source).read_text() for source in PAGES]
    texts += [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    for link in sorted({link for text in texts for link in LINK.findall(text)}):
        figure = link.removeprefix("../")
        if figure.startswith(("results/", "src/")) and (ROOT / figure).is_file():
            files.append(File.generated(config, figure, abs_src_path=str(ROOT / figure)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they are on the site: all pages lie in one folder there."""

    def moved(found: re.Match[str]) -> str:
        link = re.sub(r"^(\.\./|docs/)", "", found[1])
        return PAGES.get(link, link)

    return LINK.sub(moved, markdown)
