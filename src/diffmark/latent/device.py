"""Where networks run."""

from __future__ import annotations

import torch


def find_device(name: str | None = None) -> str:
    """A device that works here: the one named, or else cuda, mps or cpu."""
    if name is not None:
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
