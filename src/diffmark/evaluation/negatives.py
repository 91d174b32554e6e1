"""Images that carry no mark, from several sources, clean and attacked, each read against a random secret."""

from __future__ import annotations

import numpy as np
from PIL import Image

from diffmark.attacks import ATTACKS
from diffmark.baselines.base import Method
from diffmark.evaluation.lab import Lab, Reading
from diffmark.evaluation.memory import Arrays, Recipe
from diffmark.evaluation.studio import Studio
from diffmark.vista.paint import PAINTER

CHUNK = 100  # images that are read before the reading is kept
SCENES, CROPS = "painted scenes", "photograph crops"


def sources(lab: Lab) -> dict[str, int]:
    """Where unmarked pictures come from, and how many are read; as many again are read after an attack.

    A model's pictures take time, so the same ones are attacked; of scenes and photographs it is others.
    """
    extent = lab.extent
    found = {f"{lab.studio.model} images": extent.pool}
    found |= {f"{name} images": extent.siblings for name in lab.siblings}
    found[SCENES] = max(extent.scenes // 2, 1)
    if lab.photograph_paths:
        found[CROPS] = max(extent.photographs // 2, 1)
    return found


def negatives(lab: Lab, method: Method) -> Reading:
    """Of all sources, clean and attacked."""
    return Reading.joined(
        [unmarked(lab, method, source, attacked) for source in sources(lab) for attacked in (False, True)]
    )


def unmarked(lab: Lab, method: Method, source: str, attacked: bool) -> Reading:
    """One source; attacked images get one of the attacks that need no model, at a random strength."""
    count = (_fewer(lab) if method.costly or lab.is_compared(method) else sources(lab))[source]
    return Reading.joined(
        [
            _chunk(lab, method, source, attacked, first, min(CHUNK, count - first))
            for first in range(0, count, CHUNK)
        ]
    )


def _fewer(lab: Lab) -> dict[str, int]:
    """As many in all as compared methods get, evenly from sources that have enough."""
    left, taken, sizes = -(-lab.extent.compared_negatives // 2), {}, sources(lab)
    for number, source in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        taken[source] = min(sizes[source], -(-left // (len(sizes) - number)))
        left -= taken[source]
    return taken


def _chunk(lab: Lab, method: Method, source: str, attacked: bool, first: int, count: int) -> Reading:
    rng = np.random.default_rng([first, int(attacked), *source.encode()])
    drawn = rng.integers(0, 2, (count, method.bits)).astype(np.uint8)
    secrets = np.stack([method.carried(secret) for secret in drawn])
    table = list(ATTACKS.values())
    chosen, strengths = rng.integers(0, len(table), count), rng.uniform(0, 1, count)

    def make() -> Arrays:
        fresh = attacked and source in (SCENES, CROPS)
        images = _pictures(lab, source, first + (sources(lab)[source] if fresh else 0), count)
        if attacked:
            images = [
                lab.attacked(table[chosen[i]], [image], float(strengths[i]), first + i)[0]
                for i, image in enumerate(images)
            ]
        found = lab.read(method, images, secrets)
        return {"margins": found.margins, "scores": found.scores}

    recipe: Recipe = {"unmarked": source, "attacked": attacked, "first": first, "count": count}
    recipe |= {
        "half": sources(lab)[source],
        "method": method.reader(),
        "model": _studio(lab, source).digest,
    }
    if attacked:
        recipe["attacks"] = [[attack.name, attack.low, attack.high] for attack in table]
    if source == CROPS:
        recipe["photographs"] = [[path.name, path.stat().st_size] for path in lab.photograph_paths]
    elif source == SCENES:
        recipe["painter"] = PAINTER
    else:
        sampling = _studio(lab, source).sampling
        recipe["sampling"] = [sampling.steps, sampling.guidance]
    kept = lab.memory.remember(recipe, make)
    return Reading(kept["margins"], kept["scores"], secrets)


def _pictures(lab: Lab, source: str, first: int, count: int) -> list[Image.Image]:
    if source == SCENES:
        return lab.scenes(count, first)
    if source == CROPS:
        return lab.crops(count, first)
    return lab.plain(lab.orders(count, first), _studio(lab, source))


def _studio(lab: Lab, source: str) -> Studio:
    return lab.siblings.get(source.removesuffix(" images"), lab.studio)
