"""What README and docs tell the reader to type exists: commands, options, files, Python."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer

from diffmark.cli import app
from diffmark.latent.files import bundled_codecs

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    if path.name not in ("LOG.md", "cli.md")
)
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MADE_BY_THE_READER = ("runs/", "codecs/own", "results/mine")


def blocks(page, *languages):
    """The text of a page's fenced blocks in these languages."""
    return [found[3] for found in BLOCK.finditer(page.read_text()) if found[2] in languages]


def commands(page):
    """Every `diffmark ...` line of a page's blocks, continued lines joined."""
    for block in blocks(page, "", "bash", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*(\$ )?", "", line).split("  #")[0]
            line = re.sub(r"^(\w+=\S+ |docker compose exec \w+ )+", "", line)
            if line.startswith("diffmark "):
                yield line


def unknown(line):
    """What a command line names that the command does not have."""
    words = shlex.split(line.split(" | ")[0], comments=True)[1:]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if getattr(command, "commands", None) and words and not words[0].startswith("-"):
        return [words[0]]
    options = {name for item in command.params for name in (*item.opts, *item.secondary_opts)} | {"--help"}
    return [word for word in words if word.startswith("--") and word.split("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page):
    lost = {line: unknown(line) for line in commands(page) if unknown(line)}
    assert not lost


def test_a_wrong_command_would_be_found():
    assert unknown("diffmark embed photo.jpg --out marked.png") == []
    assert unknown("diffmark embed photo.jpg --nowhere x") == ["--nowhere"]
    assert unknown("diffmark train nothing") == ["nothing"]
    assert len([line for page in PAGES for line in commands(page)]) > 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_is_python_and_its_names_exist(page):
    import diffmark

    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "diffmark" or hasattr(diffmark, node.attr) or node.attr == "vista", (
                    node.attr
                )
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("diffmark"):
                module = __import__(node.module, fromlist=[name.name for name in node.names])
                assert all(hasattr(module, name.name) for name in node.names), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    """Paths in backticks and in commands that begin with a folder of the repository."""
    text = page.read_text() if page.name != "CHANGELOG.md" else ""
    named = re.findall(
        r"(?<![\w/.-])((?:configs|benchmarks|tests|docs|results|baselines|siblings)/[\w./-]*\w)", text
    )
    named = [name for name in named if not name.startswith(MADE_BY_THE_READER)]
    patterns = {name: name.replace("NAME", "*") + "*" for name in named}
    roots = (ROOT, ROOT / "src" / "diffmark")
    assert not [
        name for name, wanted in patterns.items() if not any(list(root.glob(wanted)) for root in roots)
    ]


def test_every_codec_that_ships_is_listed_with_its_use():
    listed = (
        (ROOT / "docs" / "mark.md").read_text().split("<!-- codecs -->")[1].split("<!-- end codecs -->")[0]
    )
    names = re.findall(r"^\| `([\w-]+)` \|", listed, re.MULTILINE)
    assert sorted(names) == sorted(["pixel", *bundled_codecs()])


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"\bmake ([a-z][\w-]+)\b", " ".join(blocks(page, "")))
    }
    named |= {target for page in PAGES for target in re.findall(r"`make ([a-z][\w-]+)`", page.read_text())}
    assert {"test", "demo"} <= named
    assert named <= targets
