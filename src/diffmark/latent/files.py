"""A codec's folder: where it is, what lies in it, and whether it is whole.

config.json           config, dosing, calibration, provenance, and the sha256 of the weights
codec.safetensors     encoder and decoder; nothing is ever unpickled
vae/                  an autoencoder to read with, where there is one
"""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, VERSION = "diffmark-codec", 2
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "codec.safetensors"
RETIRED = ("sd", "sdxl", "sd3", "flux")  # codecs that came with DiffMark 0.1
# Settings in files of version 1: those of retired codecs, with the value that all others have, an older name, and
# those that have had a table of their own since.
RETIRED_SETTINGS = {"fitted": False, "embed_strength": 1.0}
RENAMED = {"matched_filter": "linear_readout"}
DOSING = ("injection", "deviation", "doses")


class CodecError(ValueError):
    """A codec that cannot be loaded; the message names the file and what is wrong with it."""


def bundled_codecs() -> list[str]:
    """Names that `Codec.from_pretrained` finds inside the package."""
    root = _bundle()
    return (
        sorted(path.name for path in root.iterdir() if (path / CONFIG_FILE).is_file())
        if root.is_dir()
        else []
    )


def find_codec(source: str | Path) -> Path:
    """The local folder of a codec: as given, bundled with the package, or fetched from the hub."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CodecError(f"{folder} is a file; a codec is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    name = str(source)
    if name in bundled_codecs():
        return _bundle() / name
    if name in RETIRED:
        raise CodecError(
            f"the codec {name!r} was retired: the pixel layer marks pictures of any model (--codec pixel, the "
            "default). Marks that were written with it are read with DiffMark 0.1"
        )
    if name.count("/") == 1 and not name.startswith((".", "/")):
        try:
            return fetch(name, [CONFIG_FILE, WEIGHTS_FILE, "vae/*.json", "vae/*.safetensors"])
        except OSError as error:
            raise CodecError(
                f"no local folder {name!r}, and the hub did not give a codec of that id: {error}"
            ) from error
    known = ", ".join(bundled_codecs()) or "none"
    raise CodecError(
        f"no codec at {name!r}: it is no folder, no hub id (owner/name), and not bundled ({known})"
    )


def fetch(repository: str, files: list[str]) -> Path:
    """The local copy of files of a hub id; OSError if the hub, which is asked once, does not give it."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=files, ignore_patterns=["*.fp16.*"]))
    except Exception as error:  # its own classes, those of its HTTP library, and OSError
        raise OSError(str(error)) from error


def _bundle() -> Path:
    return Path(str(resources.files("diffmark"))) / "codecs"


def write_codec(folder: Path, described: dict[str, Any], state: dict[str, Tensor]) -> Path:
    """Write config.json and codec.safetensors into `folder`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS_FILE
    save_file({name: value.contiguous() for name, value in state.items()}, weights)
    document = {"format": FORMAT, "version": VERSION, **described, "sha256": {WEIGHTS_FILE: _sha256(weights)}}
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON document of a codec's folder, checked to be one."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise CodecError(f"{path} is missing: a codec is {CONFIG_FILE} and {WEIGHTS_FILE} together")
    try:
        document = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CodecError(f"{path} is not a codec's: it does not say format {FORMAT!r}")
    if document.get("version") == 1 and isinstance(document.get("config"), dict):
        try:
            document = _from_version_1(document)
        except (TypeError, ValueError) as error:
            raise CodecError(f"{path} does not describe a codec: {error}") from error
    if document.get("version") != VERSION:
        raise CodecError(
            f"{path} has version {document.get('version')!r}, this DiffMark reads those up to {VERSION}"
        )
    return document


def _from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """A document as it is written now: the dosing once stood among the networks' settings."""
    config = {RENAMED.get(name, name): value for name, value in document["config"].items()}
    for name, default in RETIRED_SETTINGS.items():
        if config.pop(name, default) != default:
            raise ValueError(f"{name} is of codecs that were retired; DiffMark 0.1 reads their marks")
    moved = {name: config.pop(name) for name in DOSING if name in config}
    return {**document, "version": 2, "config": config, "dosing": {**moved, **config.pop("dosing", {})}}


def check_weights(folder: Path, document: dict[str, Any]) -> None:
    """Raise unless the weights are there, and are those that the document states."""
    weights = folder / WEIGHTS_FILE
    if not weights.is_file():
        raise CodecError(f"{weights} is missing: a codec is {CONFIG_FILE} and {WEIGHTS_FILE} together")
    expected = (document.get("sha256") or {}).get(WEIGHTS_FILE)
    if expected != _sha256(weights):
        raise CodecError(
            f"{weights} does not have the sha256 that {CONFIG_FILE} states: truncated or altered"
        )


def read_weights(folder: Path, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The folder's weights for a codec whose state is `own`, in its types."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights = folder / WEIGHTS_FILE
    try:
        state = load_file(weights)
    except SafetensorError as error:
        raise CodecError(f"{weights} is not a safetensors file: {error}") from error
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())
        raise CodecError(f"{weights} holds other tensors than a codec's, for example {odd[0]!r}")
    for name, value in own.items():
        if value.shape != state[name].shape:
            raise CodecError(
                f"{weights}: {name} has shape {tuple(state[name].shape)}, "
                f"but {CONFIG_FILE} asks for {tuple(value.shape)}"
            )
    return {name: value.to(own[name].dtype) for name, value in state.items()}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
