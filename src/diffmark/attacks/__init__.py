"""Attacks: image-to-image distortions with a strength between 0 (mild) and 1 (harsh).

`attack(name, image, strength, seed)` runs one; `ATTACKS` is the table of those that need no model, `regeneration`
and `adversarial` make those that do. A new attack is a function `(image, value, rng) -> image` and one line in its
module's table.
"""

from __future__ import annotations

from PIL import Image

from diffmark.attacks import combined, distortion, everyday
from diffmark.attacks.base import Attack

ATTACKS: dict[str, Attack] = {a.name: a for a in (*distortion.ATTACKS, *combined.ATTACKS, *everyday.ATTACKS)}


def attack(name: str, image: Image.Image, strength: float, seed: int = 0) -> Image.Image:
    """Run the attack of that name."""
    if name not in ATTACKS:
        raise ValueError(f"no attack {name!r}; there are {', '.join(ATTACKS)}")
    return ATTACKS[name](image, strength, seed)
