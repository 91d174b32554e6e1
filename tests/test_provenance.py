"""What a result says of its making."""

from __future__ import annotations

import pytest

from diffmark.provenance import code_digest, command_line


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["train", "distil", "--vae", "../weights/taesd", "--out", "runs/a"], "--vae taesd --out runs/a"),
        (
            ["train", "distil", "--vae", "/models/taesd", "--pictures", "mine"],
            "--vae taesd --pictures PHOTOGRAPHS",
        ),
        (["train", "distil", "--vae", "madebyollin/taesd"], "--vae madebyollin/taesd"),
    ],
)
def test_commands_name_no_place_of_this_machine(monkeypatch, given, shown):
    monkeypatch.setattr("sys.argv", ["/usr/bin/diffmark", *given])
    assert command_line() == f"diffmark train distil {shown}"


def test_code_is_known_by_what_it_says_not_by_its_layout(tmp_path, monkeypatch):
    monkeypatch.setattr("diffmark.provenance.__file__", str(tmp_path / "provenance.py"))

    def digest(text):
        (tmp_path / "marks.py").write_text(text)
        return code_digest("marks")

    said = digest("def f(x):\n    return x + 1\n")
    assert digest("def f( x ):  # one more\n\n    return (x + 1)\n") == said
    assert digest("def f(x):\n    return x + 2\n") != said
