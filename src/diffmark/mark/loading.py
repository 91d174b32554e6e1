"""Diffusion pipelines by name: the embedded family, a local folder, or a hub id."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def load_pipeline(model: str, device: str | None = None) -> Any:
    """A diffusers pipeline: an embedded model (`vista`, ...), a folder, or a hub id; half precision on a GPU."""
    import torch
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    import diffmark.vista.autoencoder  # noqa: F401  # diffusers loads our class from a folder only if it is imported

    for library in (logging, transformers_logging):  # their advice is for who wrote the loading code: us
        library.set_verbosity_error()
        if not sys.stderr.isatty():
            library.disable_progress_bar()
    device = find_device(device)
    if is_embedded(model):
        from diffmark import vista

        return vista.load_pipeline(model).to(device)
    dtype = torch.float32 if device == "cpu" else torch.float16
    try:
        return DiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    except OSError as error:
        kind = "folder" if Path(model).exists() else "embedded model, folder or reachable hub id"
        raise FileNotFoundError(f"{model!r} is no {kind} of a diffusers pipeline: {error}") from error


def is_embedded(model: str) -> bool:
    """Whether the name is one of the embedded family's (a folder of the same name comes first)."""
    return model.startswith("vista") and not Path(model).exists()


def default_guidance(model: str) -> float:
    """Guidance that suits a model: 7.5 as in the paper, less for the small embedded ones."""
    return 4.0 if is_embedded(model) else 7.5


def default_steps(model: str) -> int:
    """Denoising steps that suit a model: 50 as in the paper, 4 of a latent consistency model."""
    return 4 if "lcm" in Path(model).name.lower() else 50


def find_device(name: str | None = None) -> str:
    """A device that works here: the one named, or else cuda, mps or cpu."""
    import torch

    if name is not None:
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"no device {name!r} here: {str(error).splitlines()[0]}") from error
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
