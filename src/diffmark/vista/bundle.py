"""Turn a trained model into the folder that is committed: half precision, safetensors, nothing else."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def bundle_model(source: Path, target: Path, vae: Path | None = None) -> int:
    """Copy a pipeline or a single model from `source` to `target` in half precision; returns its bytes.

    `vae` is the folder of an autoencoder that the repository already has: `target` gets a link to it, no copy.
    """
    if not any((source / name).exists() for name in ("model_index.json", "config.json")):
        raise FileNotFoundError(
            f"{source}: no model_index.json or config.json in it; is it a `model` folder?"
        )
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir() or (vae is not None and source / "vae" in path.parents):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".safetensors":
            save_file(_halved(load_file(path)), copy, metadata={"format": "pt"})
            copy.chmod(0o644)  # safetensors writes for its owner alone
        elif path.suffix == ".json":
            copy.write_text(_without_paths(path.read_text()))
        else:
            shutil.copyfile(path, copy)
    if vae is not None:
        link = target / "vae"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(vae.resolve(), target.resolve()), target_is_directory=True)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _halved(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in tensors.items()
    }


def _without_paths(text: str) -> str:
    """A config without the folder that it was once loaded from."""
    config = json.loads(text)
    if isinstance(config, dict):
        config.pop("_name_or_path", None)
        return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    return text
