"""What rows of experiments are, and the attacks that the paper averages over."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

WAVES = (
    "brightness", "jpeg", "contrast", "erasing", "resized_crop", "rotation", "blur", "noise",
    "regen_vae", "regen_diffusion", "rinse_2x", "adv_vae", "adv_features",
)  # fmt: skip
"""The 13 attacks of the paper's table, whose mean is its Average."""
