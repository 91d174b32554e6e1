"""Where Vista's models are and how to load them. Nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffmark import weights

if TYPE_CHECKING:  # torch and diffusers take seconds to import; names are needed sooner
    from diffmark.vista.autoencoder import PatchAutoencoder
    from diffmark.vista.classifier import SceneClassifier
    from diffmark.vista.compression import CompressionAutoencoder

BUNDLED = Path(__file__).parent / "weights"


def _folders() -> list[Path]:
    return [BUNDLED, *weights.folders("siblings")]


def model_names() -> list[str]:
    """The names that `load_pipeline` knows."""
    return sorted(path.parent.name for folder in _folders() for path in folder.glob("*/model_index.json"))


def model_folder(name: str) -> Path:
    """The folder of a pipeline, by name."""
    for folder in _folders():
        if (folder / name / "model_index.json").exists():
            return weights.checked(folder / name)
    names = ", ".join(model_names()) or "none"
    raise ValueError(f"name: there is no Vista model {name!r}; there are: {names}")


def model_digest(name: str) -> str:
    """Twelve digits of the SHA-256 of a model's weights, which tell results of different weights apart."""
    digest = hashlib.sha256()
    for path in sorted(model_folder(name).rglob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load_pipeline(name: str = "vista", **options: Any) -> Any:
    """The diffusers pipeline of a Vista model in float32; `options` go to `from_pretrained`."""
    import torch
    from diffusers import DiffusionPipeline

    import diffmark.vista.autoencoder  # noqa: F401  # diffusers uses it by name, but does not import it

    with _quiet():  # it warns that the autoencoder's class is not its own
        pipeline: Any = DiffusionPipeline.from_pretrained(
            model_folder(name), local_files_only=True, **options
        )
    pipeline.set_progress_bar_config(disable=None)
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            torch.nn.Module.float(part)  # the files are in half precision, which a CPU is slow at
            # A fifth faster there.
            torch.nn.Module.to(part, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return pipeline


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of diffusers."""
    from diffusers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(max(level, logging.ERROR))
    try:
        yield
    finally:
        logging.set_verbosity(level)


def autoencoder_class() -> type[PatchAutoencoder]:
    """The class of the family's autoencoder."""
    from diffmark.vista.autoencoder import PatchAutoencoder

    return PatchAutoencoder


def load_autoencoder() -> PatchAutoencoder:
    """The family's autoencoder, in float32, for evaluation."""
    from diffmark.vista.autoencoder import PatchAutoencoder

    return PatchAutoencoder.from_pretrained(BUNDLED / "vista" / "vae").eval()


def load_classifier() -> SceneClassifier:
    """The scene classifier, in float32, for evaluation."""
    from diffmark.vista.classifier import SceneClassifier

    return SceneClassifier.from_pretrained(BUNDLED / "classifier").eval()


def load_compression() -> CompressionAutoencoder:
    """The compression autoencoder for regeneration attacks, in float32, for evaluation."""
    from diffmark.vista.compression import CompressionAutoencoder

    for folder in _folders():
        if (folder / "compression" / "config.json").exists():
            return CompressionAutoencoder.from_pretrained(folder / "compression").eval()
    raise FileNotFoundError(
        f"no compression autoencoder; train it, or put it into siblings/ of {weights.FOLDERS_VARIABLE}"
    )
