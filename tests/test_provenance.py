"""What a result says of its making."""

from __future__ import annotations

import pytest

from diffmark.provenance import command_line


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
