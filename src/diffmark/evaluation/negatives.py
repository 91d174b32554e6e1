"""Images that carry no mark, from several sources, clean and attacked, each read against a random secret."""

from __future__ import annotations

import numpy as np
from PIL import Image

from diffmark.attacks import ATTACKS
from diffmark.baselines.base import Method
from diffmark.evaluation.cache import Arrays, Recipe
from diffmark.evaluation.harness import Harness, Reading
from diffmark.evaluation.image_model import ImageModel
from diffmark.vista.paint import PAINTER

CHUNK, COSTLY_CHUNK = 100, 25  # images that are read before the reading is kept
SCENES, CROPS = "painted scenes", "photograph crops"


def sources(harness: Harness) -> dict[str, int]:
    """Where unmarked pictures come from, and how many are read; as many again are read after an attack.

    A model's pictures take time, so the same ones are attacked; of scenes and photographs it is others.
    """
    extent = harness.extent
    found = {f"{harness.model.name} images": extent.pool}
    found |= {f"{name} images": extent.siblings for name in harness.siblings}
    found[SCENES] = max(extent.scenes // 2, 1)
    if harness.photograph_paths:
        found[CROPS] = max(extent.photographs // 2, 1)
    return found


def negatives(harness: Harness, method: Method) -> Reading:
    """Of all sources, clean and attacked; where time is short, of all of them evenly."""
    places = [(source, attacked) for source in sources(harness) for attacked in (False, True)]
    most = max(_count(harness, method, source) for source in sources(harness))
    for first in range(0, most, _size(method)):
        for source, attacked in places:
            if first < _count(harness, method, source):
                _chunk(harness, method, source, attacked, first)
    return Reading.joined([unmarked(harness, method, source, attacked) for source, attacked in places])


def unmarked(harness: Harness, method: Method, source: str, attacked: bool) -> Reading:
    """One source; attacked images get one of the attacks that need no model, at a random strength."""
    starts = range(0, _count(harness, method, source), _size(method))
    made = [_chunk(harness, method, source, attacked, first) for first in starts]
    parts = [part for part in made if part is not None]
    return Reading.joined(parts) if parts else Reading.nothing(method)


def _size(method: Method) -> int:
    return COSTLY_CHUNK if method.costly else CHUNK


def _count(harness: Harness, method: Method, source: str) -> int:
    """Images of one source, clean or attacked."""
    fewer = method.costly or harness.is_compared(method)
    return (_fewer(harness) if fewer else sources(harness))[source]


def _fewer(harness: Harness) -> dict[str, int]:
    """As many in all as compared methods get, evenly from sources that have enough."""
    left, taken, sizes = -(-harness.extent.compared_negatives // 2), {}, sources(harness)
    for number, source in enumerate(sorted(sizes, key=lambda name: sizes[name])):
        taken[source] = min(sizes[source], -(-left // (len(sizes) - number)))
        left -= taken[source]
    return taken


def _chunk(harness: Harness, method: Method, source: str, attacked: bool, first: int) -> Reading | None:
    """One part of a source; None where time is short and it is not kept."""
    count = min(_size(method), _count(harness, method, source) - first)
    rng = np.random.default_rng([first, int(attacked), *source.encode()])
    drawn = rng.integers(0, 2, (count, method.bits)).astype(np.uint8)
    secrets = np.stack([method.carried(secret) for secret in drawn])
    table = list(ATTACKS.values())
    chosen, strengths = rng.integers(0, len(table), count), rng.uniform(0, 1, count)

    def make() -> Arrays:
        fresh = attacked and source in (SCENES, CROPS)
        images = _pictures(harness, source, first + (sources(harness)[source] if fresh else 0), count)
        if attacked:
            images = [
                harness.attacked(table[chosen[i]], [image], float(strengths[i]), first + i)[0]
                for i, image in enumerate(images)
            ]
        found = harness.read(method, images, secrets)
        return {"margins": found.margins, "scores": found.scores}

    recipe: Recipe = {"unmarked": source, "attacked": attacked, "first": first, "count": count}
    recipe |= {
        "half": sources(harness)[source],
        "method": harness.identity(method)[1],
        "model": _model(harness, source).digest,
    }
    if attacked:
        recipe["attacks"] = [[attack.name, attack.low, attack.high] for attack in table]
    if source == CROPS:
        recipe["photographs"] = [[path.name, path.stat().st_size] for path in harness.photograph_paths]
    elif source == SCENES:
        recipe["painter"] = PAINTER
    else:
        sampling = _model(harness, source).sampling
        recipe["sampling"] = [sampling.steps, sampling.guidance]
    if harness.out_of_time and not harness.cache.has(recipe, "npz"):
        return None
    kept = harness.cache.remember(recipe, make)
    return Reading(kept["margins"], kept["scores"], secrets)


def _pictures(harness: Harness, source: str, first: int, count: int) -> list[Image.Image]:
    if source == SCENES:
        return harness.scenes(count, first)
    if source == CROPS:
        return harness.crops(count, first)
    return harness.plain(harness.specs(count, first), _model(harness, source))


def _model(harness: Harness, source: str) -> ImageModel:
    return harness.siblings.get(source.removesuffix(" images"), harness.model)
