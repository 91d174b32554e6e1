"""Diffusion pipelines by name: the embedded family, a local folder, or a hub id."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from diffmark.latent.families import family_of, import_autoencoders


def load_pipeline(model: str, device: str | None = None) -> Any:
    """A diffusers pipeline: an embedded model (`vista`, ...), a folder, or a hub id; half precision on a GPU."""
    import torch
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging
    from transformers.utils import logging as transformers_logging

    from diffmark.latent.device import find_device

    import_autoencoders()
    for library in (logging, transformers_logging):  # their advice is for who wrote the loading code: us
        library.set_verbosity_error()
        if not sys.stderr.isatty():
            library.disable_progress_bar()
    device = find_device(device)
    family = family_of(model)
    if family is not None:
        return family.models().load_pipeline(model).to(device)
    dtype = torch.float32 if device == "cpu" else torch.float16
    try:
        return DiffusionPipeline.from_pretrained(model, torch_dtype=dtype).to(device)
    except OSError as error:
        kind = "folder" if Path(model).exists() else "embedded model, folder or reachable hub id"
        raise FileNotFoundError(f"{model!r} is no {kind} of a diffusers pipeline: {error}") from error


def is_embedded(model: str) -> bool:
    """Whether the name is one of the embedded family's (a folder of the same name comes first)."""
    return family_of(model) is not None


def default_guidance(model: str) -> float:
    """Guidance that suits a model: 7.5 as in the paper, less for the small embedded ones."""
    return 4.0 if is_embedded(model) else 7.5


def default_steps(model: str) -> int:
    """Denoising steps that suit a model: 50 as in the paper, 4 of a latent consistency model."""
    return 4 if "lcm" in Path(model).name.lower() else 50
