"""Training of the baselines that need it."""

from __future__ import annotations

from pathlib import Path

from diffmark.training.run_file import read_run_file


def train_baseline(
    name: str, config: Path, folder: Path, photos: Path | None = None, stop_after: int | None = None
) -> bool:
    """Train a baseline by its method's name into `folder/model`; False if it is not finished."""
    if name == "stegastamp":
        from diffmark.baselines.training.stegastamp import StegaStampConfig, train_stegastamp

        return (
            train_stegastamp(read_run_file(config, StegaStampConfig), folder, photos, stop_after) is not None
        )
    if name == "stable-signature":
        from diffmark.baselines.training.stable_signature import StableSignatureConfig, train_stable_signature

        settings = read_run_file(config, StableSignatureConfig)
        return train_stable_signature(settings, folder, photos, stop_after) is not None
    if name == "aqualora":
        from diffmark.baselines.training.aqualora import AquaLoraConfig, train_aqualora

        return train_aqualora(read_run_file(config, AquaLoraConfig), folder, photos, stop_after) is not None
    raise ValueError(f"no baseline {name!r} has a training; there are stegastamp, stable-signature, aqualora")
